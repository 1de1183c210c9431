rule track:
    input:
        STUDY,
        runs=f"{COLLECTED}/{{study}}/runs.parquet",
    output:
        f"{COLLECTED}/{{study}}/tracked.json",
    log:
        f"{RESULTS}/logs/track/{{study}}.log",
    priority: 1  # tables and figures can be made beside it, by other cores
    conda:
        LOCK
    params:
        results=lambda wildcards: RESULTS,
        report=lambda wildcards: plan.report(wildcards.study),
        secure=plan.secure_option,
    shell:
        "clipnoise mlflow-sync --study {input.study:q} --scale {input.scale:q} --results {params.results:q}"
        " --runs {input.runs:q} --report {params.report:q} {params.secure} --out {output:q} > {log:q} 2>&1"
