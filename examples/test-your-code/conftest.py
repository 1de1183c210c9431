pytest_plugins = ["clipnoise.audit.loops.plugin"]
