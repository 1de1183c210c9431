BUNDLE = f"{TEMPLATES}/bundle.typ"


rule paper_report:
    input:
        reports=lambda wildcards: expand(
            f"{REPORTS}/{{artefact}}.pdf", artefact=plan.papers[wildcards.paper]
        ),
        scale=plan.scale or [],
        template=BUNDLE,
        shared=SHARED,
        fidelity=lambda wildcards: fidelity_files(
            PUBLISHED, plan.papers[wildcards.paper]
        ).values(),
    output:
        report(
            f"{REPORTS}/{{paper}}/report.pdf",
            category="{paper}",
            labels={"report": "all artefacts"},
        ),
    log:
        f"{RESULTS}/logs/paper_report/{{paper}}.log",
    wildcard_constraints:
        paper=plan.patterns["paper"],
    conda:
        LOCK
    params:
        reports=lambda wildcards: REPORTS,
        studies=str(plan.folder),
        published=str(PUBLISHED),
        artefacts=lambda wildcards: plan.papers[wildcards.paper],
    shell:
        "clipnoise bundle {params.artefacts:q} --reports {params.reports:q}"
        " --studies {params.studies:q} --scale {input.scale:q} --template {input.template:q}"
        " --published {params.published:q} --out {output:q} > {log:q} 2>&1"


use rule paper_report as every_report with:
    input:
        reports=expand(f"{REPORTS}/{{artefact}}.pdf", artefact=plan.artefacts),
        scale=plan.scale or [],
        template=BUNDLE,
        shared=SHARED,
        fidelity=fidelity_files(PUBLISHED, plan.artefacts).values(),
    output:
        report(
            f"{REPORTS}/all.pdf",
            category="All papers",
            labels={"report": "all artefacts"},
        ),
    log:
        f"{RESULTS}/logs/every_report.log",
    params:
        reports=lambda wildcards: REPORTS,
        studies=str(plan.folder),
        published=lambda wildcards: str(PUBLISHED),
        artefacts=plan.artefacts,
