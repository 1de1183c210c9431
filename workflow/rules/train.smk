# tracking and device stand among the resources, not the params: they do not belong to a result, so
# changing them must not train anything again.
rule train:
    input:
        data=lambda wildcards: plan.dataset_files(wildcards.hash),
        calibration=lambda wildcards: plan.calibration_file(wildcards.hash),
        choice=lambda wildcards: plan.choice_file(wildcards.hash),
        store=ancient(f"{RESULTS}/mlflow.json"),
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
    threads: plan.config.resources.threads
    resources:
        mem_mb=lambda wildcards, attempt: plan.config.resources.memory_mb * attempt,
        runtime=lambda wildcards, attempt: plan.config.resources.minutes * attempt,
        gpu=plan.config.resources.gpus,
        cpus_per_task=plan.config.resources.threads,
        tracking=plan.config.tracking,
        device=plan.config.device,
    params:
        spec=lambda wildcards: plan.spec_json(wildcards.hash),
        fingerprint=lambda wildcards: plan.fingerprint(wildcards.hash),
        cache=lambda wildcards: CACHE,
        weights=lambda wildcards: plan.config.weights,
        results=lambda wildcards: RESULTS,
    shell:
        "clipnoise train --spec {params.spec:q} --calibration {input.calibration:q}"
        " --choice {input.choice:q}"
        " --cache {params.cache:q} --weights {params.weights:q} --results {params.results:q} --tracking {resources.tracking}"
        " --device {resources.device} --threads {resources.cpus_per_task} > {log:q} 2>&1"
