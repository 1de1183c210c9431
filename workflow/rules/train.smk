# exec, in both rules: a signal must reach the run, not a shell that ends before the run is saved.
# tracking and device stand among the resources, not the params: they do not belong to a result, so
# changing them must not train anything again.
rule train:
    input:
        data=lambda wildcards: plan.dataset_files(wildcards.hash),
        calibration=lambda wildcards: plan.calibration_file(wildcards.hash),
        choice=lambda wildcards: plan.choice_file(wildcards.hash),
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
    threads: plan.job.threads
    resources:
        mem_mb=lambda wildcards, attempt: plan.job.memory_mb * attempt,
        runtime=lambda wildcards, attempt: plan.job.minutes * attempt,
        gres=lambda wildcards: plan.job.gres(wildcards.model),
        cpus_per_task=plan.job.threads,
        gpus_held=plan.job.gpus,
        tracking=plan.config.tracking,
        device=plan.config.device,
    params:
        spec=lambda wildcards: plan.spec_json(wildcards.hash),
        fingerprint=lambda wildcards: fingerprint(wildcards.hash),
        cache=lambda wildcards: CACHE,
        weights=lambda wildcards: plan.config.weights,
        results=lambda wildcards: RESULTS,
    shell:
        "exec clipnoise train --spec {params.spec:q} --calibration {input.calibration:q}"
        " --choice {input.choice:q}"
        " --cache {params.cache:q} --weights {params.weights:q} --results {params.results:q} --tracking {resources.tracking}"
        " --device {resources.device} --gpus {resources.gpus_held} --requeue --threads {resources.cpus_per_task} > {log:q} 2>&1"


# The runs' files are not its output, because Snakemake deletes what a failed job has made: a batch
# that is started again trains only the runs that have no result.
rule train_batch:
    input:
        data=lambda wildcards: plan.for_batch(plan.dataset_files, wildcards.batch),
        calibration=lambda wildcards: plan.for_batch(
            plan.calibration_file, wildcards.batch
        ),
        choice=lambda wildcards: plan.for_batch(plan.choice_file, wildcards.batch),
    output:
        f"{RESULTS}/batches/{{batch}}.json",
    log:
        f"{RESULTS}/logs/train_batch/{{batch}}.log",
    benchmark:
        f"{RESULTS}/logs/train_batch/{{batch}}.jsonl"
    conda:
        LOCK
    threads: lambda wildcards: plan.batch(wildcards.batch).parallel * plan.job.threads
    resources:
        mem_mb=lambda wildcards, attempt: (
            plan.batch(wildcards.batch).parallel * plan.job.memory_mb * attempt
        ),
        runtime=lambda wildcards, attempt: (
            plan.batch(wildcards.batch).rounds * plan.job.minutes * attempt
        ),
        gres=lambda wildcards: plan.job.gres(
            plan.batch(wildcards.batch).runs[0].model.id
        ),
        cpus_per_task=lambda wildcards: (
            plan.batch(wildcards.batch).parallel * plan.job.threads
        ),
        gpus_held=plan.job.gpus,
        tracking=plan.config.tracking,
        device=plan.config.device,
    params:
        specs=lambda wildcards: plan.batch_json(wildcards.batch),
        fingerprints=lambda wildcards: plan.for_batch(fingerprint, wildcards.batch),
        parallel=lambda wildcards: plan.batch(wildcards.batch).parallel,
        run_threads=plan.job.threads,
        cache=lambda wildcards: CACHE,
        weights=lambda wildcards: plan.config.weights,
        results=lambda wildcards: RESULTS,
    shell:
        "exec clipnoise train-batch --specs {params.specs:q} --calibration {input.calibration:q}"
        " --choice {input.choice:q}"
        " --cache {params.cache:q} --weights {params.weights:q} --results {params.results:q} --tracking {resources.tracking}"
        " --device {resources.device} --gpus {resources.gpus_held} --requeue --threads {params.run_threads}"
        " --parallel {params.parallel} --out {output:q} > {log:q} 2>&1"
