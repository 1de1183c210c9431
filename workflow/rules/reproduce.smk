from clipnoise.papers.base import fingerprint as experiment_fingerprint


rule reproduce:
    input:
        settings=BASE / "workflow/reproductions/{artefact}.yaml",
        published=BASE / "reports/published/{artefact}.csv",
        scale=plan.reproduction_scale or [],
    output:
        comparison=f"{plan.reproduced}/{{artefact}}/comparison.csv",
        data=f"{plan.reproduced}/{{artefact}}/data.csv",
        run=f"{plan.reproduced}/{{artefact}}/run.json",
    log:
        f"{RESULTS}/logs/reproduce/{{artefact}}.log",
    wildcard_constraints:
        artefact=plan.patterns["reproduction"],
    conda:
        LOCK
    params:
        folder=subpath(output.comparison, parent=True),
        fingerprint=lambda wildcards, input: experiment_fingerprint(
            wildcards.artefact, Path(input.settings)
        ),
    shell:
        "clipnoise reproduce {wildcards.artefact} --settings {input.settings:q}"
        " --published {input.published:q} --scale {input.scale:q}"
        " --out {params.folder:q} > {log:q} 2>&1"


rule reproduction_report:
    input:
        data=f"{plan.reproduced}/{{artefact}}/comparison.csv",
        template=f"{TEMPLATES}/reproduction.typ",
        shared=SHARED,
        fidelity=lambda wildcards: fidelity_files(
            PUBLISHED, [wildcards.artefact]
        ).values(),
    output:
        pdf=report(
            f"{REPORTS}/{{artefact}}.pdf",
            category="Reproductions",
            labels={"artefact": "{artefact}"},
        ),
        comparison=f"{REPORTS}/{{artefact}}.csv",
    log:
        f"{RESULTS}/logs/reproduction_report/{{artefact}}.log",
    wildcard_constraints:
        artefact=plan.patterns["reproduction"],
    conda:
        LOCK
    params:
        folder=subpath(input.data, parent=True),
        published=str(PUBLISHED),
    shell:
        "clipnoise reproduction-report {wildcards.artefact} --template {input.template:q}"
        " --data {params.folder:q} --published {params.published:q} --out {output.pdf:q} > {log:q} 2>&1"


rule reproductions:
    input:
        expand(f"{REPORTS}/{{artefact}}.pdf", artefact=plan.reproductions),
