rule calibrate:
    output:
        f"{RESULTS}/calibration/{{key}}.json",
    log:
        f"{RESULTS}/logs/calibrate/{{key}}.log",
    priority: 1000  # runs wait for it
    conda:
        LOCK
    resources:
        label=lambda wildcards: plan.label("calibrate", wildcards.key),
    params:
        options=lambda wildcards: plan.calibration(wildcards.key).options(),
    message:
        "calibrate {resources.label}"
    shell:
        "clipnoise calibrate {params.options} --out {output:q} > {log:q} 2>&1"
