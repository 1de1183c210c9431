from clipnoise.studies.fidelity import fidelity_files

TEMPLATES = BASE / "reports" / "templates"
TEMPLATE, SHARED = TEMPLATES / "report.typ", TEMPLATES / "shared.typ"
PUBLISHED = plan.published


rule table:
    input:
        STUDY,
        runs=f"{COLLECTED}/{{study}}/runs.parquet",
    output:
        csv=report(
            f"{REPORTS}/{{study}}/tables/{{panel}}.csv",
            caption="../report/table.rst",
            category="{study}",
            subcategory="Tables",
            labels={"panel": "{panel}"},
        ),
        markdown=f"{REPORTS}/{{study}}/tables/{{panel}}.md",
        latex=f"{REPORTS}/{{study}}/tables/{{panel}}.tex",
    log:
        f"{RESULTS}/logs/table/{{study}}/{{panel}}.log",
    conda:
        LOCK
    params:
        folder=subpath(output.csv, parent=True),
    shell:
        "clipnoise table --study {input.study:q} --scale {input.scale:q} --panel {wildcards.panel}"
        " --runs {input.runs:q} --out {params.folder:q}/{wildcards.panel} > {log:q} 2>&1"


rule figure:
    input:
        STUDY,
        runs=f"{COLLECTED}/{{study}}/runs.parquet",
        curves=f"{COLLECTED}/{{study}}/curves.parquet",
    output:
        report(
            f"{REPORTS}/{{study}}/figures/{{number}}.svg",
            caption="../report/figure.rst",
            category="{study}",
            subcategory="Figures",
            labels=lambda wildcards: plan.figure_labels(
                wildcards.study, int(wildcards.number)
            ),
        ),
    log:
        f"{RESULTS}/logs/figure/{{study}}/{{number}}.log",
    conda:
        LOCK
    shell:
        "clipnoise figure --study {input.study:q} --scale {input.scale:q}"
        " --item {wildcards.number} --runs {input.runs:q} --curves {input.curves:q} --out {output:q} > {log:q} 2>&1"


rule compare:
    input:
        STUDY,
        runs=f"{COLLECTED}/{{study}}/runs.parquet",
        tables=lambda wildcards: plan.published_tables(
            plan.study(wildcards.study)
        ).values(),
    output:
        report(
            f"{REPORTS}/{{study}}.csv",
            caption="../report/comparison.rst",
            category="{study}",
            subcategory="Tables",
            labels={"panel": "published and measured here"},
        ),
    log:
        f"{RESULTS}/logs/compare/{{study}}.log",
    conda:
        LOCK
    params:
        published=str(PUBLISHED),
    shell:
        "clipnoise compare --study {input.study:q} --scale {input.scale:q} --runs {input.runs:q}"
        " --published {params.published:q} --out {output:q} > {log:q} 2>&1"


rule report:
    input:
        STUDY,
        runs=f"{COLLECTED}/{{study}}/runs.parquet",
        curves=f"{COLLECTED}/{{study}}/curves.parquet",
        template=TEMPLATE,
        shared=SHARED,
        fidelity=lambda wildcards: fidelity_files(PUBLISHED, [wildcards.study]).values(),
        tables=lambda wildcards: plan.tables(wildcards.study),
        figures=lambda wildcards: plan.figures(wildcards.study),
        comparison=lambda wildcards: (
            f"{REPORTS}/{wildcards.study}.csv"
            if plan.published_tables(plan.study(wildcards.study))
            else []
        ),
    output:
        report(
            f"{REPORTS}/{{study}}/report.pdf",
            caption="../report/report.rst",
            category="{study}",
            subcategory="Report",
            labels={"report": "PDF"},
        ),
    log:
        f"{RESULTS}/logs/report/{{study}}.log",
    wildcard_constraints:
        study=plan.patterns["single"],
    conda:
        LOCK
    params:
        published=str(PUBLISHED),
        figures=lambda wildcards: f"{REPORTS}/{wildcards.study}/figures",
    shell:
        "clipnoise report --study {input.study:q} --scale {input.scale:q} --runs {input.runs:q}"
        " --curves {input.curves:q} --figures {params.figures:q} --template {input.template:q}"
        " --published {params.published:q} --out {output:q} > {log:q} 2>&1"


# A page for browsers, and a row per run for other programs.
rule publish:
    input:
        STUDY,
        runs=f"{COLLECTED}/{{study}}/runs.parquet",
        template=f"{TEMPLATES}/page.html",
    output:
        page=f"{REPORTS}/{{study}}/index.html",
        csv=f"{REPORTS}/{{study}}/{{study}}.csv",
        parquet=f"{REPORTS}/{{study}}/{{study}}.parquet",
        description=f"{REPORTS}/{{study}}/croissant.json",
    log:
        f"{RESULTS}/logs/publish/{{study}}.log",
    wildcard_constraints:
        study=plan.patterns["single"],
    conda:
        LOCK
    params:
        folder=subpath(output.page, parent=True),
    shell:
        "clipnoise publish --study {input.study:q} --scale {input.scale:q} --runs {input.runs:q}"
        " --template {input.template:q} --out {params.folder:q} > {log:q} 2>&1"


use rule report as artefact with:
    output:
        report(
            f"{REPORTS}/{{study}}.pdf",
            caption="../report/report.rst",
            category="{study}",
            subcategory="Report",
            labels={"report": "PDF"},
        ),
    log:
        f"{RESULTS}/logs/artefact/{{study}}.log",
    wildcard_constraints:
        study=plan.patterns["artefact"],


# Shows the results that exist: no run is an input, so a failed job cannot hold it up.
rule partial_report:
    input:
        STUDY,
        template=TEMPLATE,
        shared=SHARED,
        fidelity=lambda wildcards: fidelity_files(PUBLISHED, [wildcards.study]).values(),
    output:
        f"{REPORTS}/{{study}}/partial.pdf",
    log:
        f"{RESULTS}/logs/partial_report/{{study}}.log",
    conda:
        LOCK
    params:
        results=lambda wildcards: RESULTS,
        published=str(PUBLISHED),
        secure=plan.secure_option,
    shell:
        "clipnoise partial-report {input.study:q} --scale {input.scale:q} {params.secure}"
        " --results {params.results:q} --template {input.template:q} --published {params.published:q}"
        " --out {output:q} > {log:q} 2>&1"
