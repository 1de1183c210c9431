# With `exec`, a signal reaches the run itself. A shell in between would end at once, before the run
# has saved its state. With `update`, Snakemake keeps existing outputs: a job that holds several runs
# repeats only those that have no sound result. `device` is a resource, because it cannot change a
# result, and a changed param would train every run again.
rule train:
    input:
        unpack(lambda wildcards: plan.inputs(wildcards.hash)),
    output:
        summary=update(f"{RESULTS}/runs/{RUN}/summary.json"),
        spec=update(f"{RESULTS}/runs/{RUN}/spec.yaml"),
        metrics=update(f"{RESULTS}/runs/{RUN}/metrics.csv"),
    log:
        f"{RESULTS}/runs/{RUN}/run.log",
    priority: lambda wildcards: plan.priority(wildcards.hash)
    # A run that waits for a choice is in a group of its own: a group must not depend on itself.
    group:
        lambda wildcards: plan.group(wildcards.hash)
    conda:
        LOCK
    threads: JOB.cpus
    resources:
        **JOB.several_nodes,
        mem_mb=lambda wildcards, attempt: JOB.memory_mb
        * plan.factor(wildcards.hash, "memory", attempt, workflow.executor_settings),
        runtime=lambda wildcards, attempt: JOB.minutes
        * plan.factor(wildcards.hash, "time", attempt, workflow.executor_settings),
        gres=lambda wildcards: JOB.gres(wildcards.model),
        cpus_per_task=JOB.cpus,
        threads_each=JOB.threads,
        processes=JOB.together,
        nodes_held=JOB.nodes,
        gpus_held=JOB.gpus,
        slots=lambda wildcards: JOB.slots(wildcards.model),
        device=plan.config.device,
    params:
        spec=lambda wildcards: plan.spec_json(wildcards.hash),
        fingerprint=lambda wildcards: plan.fingerprint(wildcards.hash),
        cache=lambda wildcards: CACHE,
        weights=lambda wildcards: plan.config.weights,
        results=lambda wildcards: RESULTS,
    message:
        "train {plan:train {wildcards.hash}}"
    shell:
        "exec clipnoise train --spec {params.spec:q} --calibration {input.calibration:q}"
        " --choice {input.choice:q}"
        " --cache {params.cache:q} --weights {params.weights:q} --results {params.results:q}"
        " --device {resources.device} --gpus {resources.gpus_held} --slots {resources.slots} --fingerprint={params.fingerprint:q} --requeue --keep-finished --threads {resources.threads_each} --processes {resources.processes} --nodes {resources.nodes_held} >> {log:q} 2>&1"
