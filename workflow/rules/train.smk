# Both rules use exec, because a signal must reach the run, not a shell that would end before the run is
# saved. tracking and device are resources rather than params: they cannot change a result, so changing
# them must not train anything again.
rule train:
    input:
        unpack(lambda wildcards: plan.inputs([plan.run(wildcards.hash)])),
    output:
        summary=f"{RESULTS}/runs/{RUN}/summary.json",
        spec=f"{RESULTS}/runs/{RUN}/spec.yaml",
        metrics=f"{RESULTS}/runs/{RUN}/metrics.csv",
    log:
        f"{RESULTS}/runs/{RUN}/run.log",
    benchmark:
        f"{RESULTS}/runs/{RUN}/benchmark.jsonl"
    conda:
        LOCK
    threads: JOB.threads
    resources:
        mem_mb=lambda wildcards, attempt: JOB.memory_mb * attempt,
        runtime=lambda wildcards, attempt: JOB.minutes * attempt,
        gres=lambda wildcards: JOB.gres(wildcards.model),
        cpus_per_task=JOB.threads,
        gpus_held=JOB.gpus,
        tracking=plan.config.tracking,
        device=plan.config.device,
    params:
        spec=lambda wildcards: plan.spec_json(wildcards.hash),
        fingerprint=lambda wildcards: plan.fingerprints([plan.run(wildcards.hash)]),
        cache=lambda wildcards: CACHE,
        weights=lambda wildcards: plan.config.weights,
        results=lambda wildcards: RESULTS,
    shell:
        "exec clipnoise train --spec {params.spec:q} --calibration {input.calibration:q}"
        " --choice {input.choice:q}"
        " --cache {params.cache:q} --weights {params.weights:q} --results {params.results:q} --tracking {resources.tracking}"
        " --device {resources.device} --gpus {resources.gpus_held} --requeue --threads {resources.cpus_per_task} > {log:q} 2>&1"


# The files of the runs are not its output, because Snakemake deletes the output of a failed job: a group
# that is started again trains only the runs that have no result.
rule train_group:
    input:
        unpack(lambda wildcards: plan.inputs(plan.group(wildcards.group).runs)),
    output:
        f"{RESULTS}/groups/{{group}}.json",
    log:
        f"{RESULTS}/logs/train_group/{{group}}.log",
    benchmark:
        f"{RESULTS}/logs/train_group/{{group}}.jsonl"
    conda:
        LOCK
    threads: lambda wildcards: plan.group(wildcards.group).parallel * JOB.threads
    resources:
        mem_mb=lambda wildcards, attempt: (
            plan.group(wildcards.group).parallel * JOB.memory_mb * attempt
        ),
        runtime=lambda wildcards, attempt: (
            plan.group(wildcards.group).rounds * JOB.minutes * attempt
        ),
        gres=lambda wildcards: JOB.gres(plan.group(wildcards.group).runs[0].model.id),
        cpus_per_task=lambda wildcards: (
            plan.group(wildcards.group).parallel * JOB.threads
        ),
        gpus_held=JOB.gpus,
        tracking=plan.config.tracking,
        device=plan.config.device,
    params:
        specs=lambda wildcards: plan.group_json(wildcards.group),
        fingerprints=lambda wildcards: plan.fingerprints(
            plan.group(wildcards.group).runs
        ),
        parallel=lambda wildcards: plan.group(wildcards.group).parallel,
        run_threads=JOB.threads,
        cache=lambda wildcards: CACHE,
        weights=lambda wildcards: plan.config.weights,
        results=lambda wildcards: RESULTS,
    shell:
        "exec clipnoise train-group --specs {params.specs:q} --calibration {input.calibration:q}"
        " --choice {input.choice:q}"
        " --cache {params.cache:q} --weights {params.weights:q} --results {params.results:q} --tracking {resources.tracking}"
        " --device {resources.device} --gpus {resources.gpus_held} --requeue --threads {params.run_threads}"
        " --parallel {params.parallel} --out {output:q} > {log:q} 2>&1"
