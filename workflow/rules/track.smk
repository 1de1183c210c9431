# A fresh store that many jobs open at once breaks: one job makes it before any other runs.
rule open_store:
    input:
        studies=[plan.study_file(study) for study in plan.configured],
        scale=plan.scale or [],
    output:
        f"{RESULTS}/mlflow.json",
    log:
        f"{RESULTS}/logs/open_store.log",
    benchmark:
        f"{RESULTS}/logs/open_store.jsonl"
    conda:
        LOCK
    params:
        results=lambda wildcards: RESULTS,
        tracking=plan.config.tracking,
    shell:
        "clipnoise mlflow-init {input.studies:q} --scale {input.scale:q} --results {params.results:q}"
        " --tracking {params.tracking} > {log:q} 2>&1"


rule track:
    input:
        store=f"{RESULTS}/mlflow.json",
        study=lambda wildcards: plan.study_file(wildcards.study),
        scale=lambda wildcards: plan.scale_file(wildcards.study),
        runs=f"{COLLECTED}/{{study}}/runs.csv",
    output:
        f"{COLLECTED}/{{study}}/tracked.json",
    log:
        f"{RESULTS}/logs/track/{{study}}.log",
    benchmark:
        f"{RESULTS}/logs/track/{{study}}.jsonl"
    conda:
        LOCK
    params:
        results=lambda wildcards: RESULTS,
        tracking=plan.config.tracking,
    shell:
        "clipnoise mlflow-sync --study {input.study:q} --scale {input.scale:q} --results {params.results:q}"
        " --tracking {params.tracking} --out {output:q} > {log:q} 2>&1"
