# No retries: a damaged result is set aside, and a second try would take it for missing.
rule collect:
    input:
        STUDY,
        sources=lambda wildcards: plan.study(wildcards.study).sources,
        runs=lambda wildcards: plan.results(wildcards.study),
    output:
        runs=f"{COLLECTED}/{{study}}/runs.parquet",
        curves=f"{COLLECTED}/{{study}}/curves.parquet",
        runs_csv=f"{COLLECTED}/{{study}}/runs.csv",
        curves_csv=f"{COLLECTED}/{{study}}/curves.csv",
    log:
        f"{RESULTS}/logs/collect/{{study}}.log",
    retries: 0
    conda:
        LOCK
    params:
        folder=subpath(output.runs, parent=True),
        results=lambda wildcards: RESULTS,
        secure=plan.secure_option,
        audits=lambda wildcards: plan.audits(wildcards.study),
    shell:
        "clipnoise collect {input.study:q} --scale {input.scale:q} {params.secure} --results {params.results:q}"
        " --out {params.folder:q} > {log:q} 2>&1"
