from clipnoise.audit.catalog import MISTAKES, audited_methods, claiming_methods
from clipnoise.audit.catalog import datasets as audit_datasets
from clipnoise.audit.catalog import fingerprint as audit_fingerprint


# These reports are not those of studies.
ruleorder: audit_report > report
ruleorder: reaccount > report


# The fingerprint repeats an audit when the code that it attacks has changed.
rule audit_method:
    input:
        lambda wildcards: expand(
            f"{CACHE}/{{dataset}}/manifest.json",
            dataset=audit_datasets(wildcards.method),
        ),
    output:
        f"{RESULTS}/audit/{{kind}}/{{method}}.json",
    log:
        f"{RESULTS}/logs/audit/{{kind}}/{{method}}.log",
    wildcard_constraints:
        kind="contract|empirical",
    conda:
        LOCK
    params:
        cache=lambda wildcards: CACHE,
        fingerprint=lambda wildcards: audit_fingerprint(
            wildcards.kind, wildcards.method
        ),
    shell:
        "OMP_NUM_THREADS=1 clipnoise audit {wildcards.kind} {wildcards.method} --cache {params.cache:q}"
        " --out {output:q} > {log:q} 2>&1"


rule audit_control:
    input:
        f"{CACHE}/digits/manifest.json",
    output:
        f"{RESULTS}/audit/control/{{control}}.json",
    log:
        f"{RESULTS}/logs/audit/control/{{control}}.log",
    conda:
        LOCK
    params:
        cache=lambda wildcards: CACHE,
        fingerprint=lambda wildcards: audit_fingerprint("controls"),
    shell:
        "OMP_NUM_THREADS=1 clipnoise audit control {wildcards.control} --cache {params.cache:q}"
        " --out {output:q} > {log:q} 2>&1"


rule audit_report:
    input:
        contract=expand(
            f"{RESULTS}/audit/contract/{{method}}.json", method=audited_methods()
        ),
        empirical=expand(
            f"{RESULTS}/audit/empirical/{{method}}.json", method=claiming_methods()
        ),
        control=expand(
            f"{RESULTS}/audit/control/{{control}}.json", control=list(MISTAKES)
        ),
        template=f"{TEMPLATES}/audit.typ",
        shared=SHARED,
    output:
        report(
            f"{REPORTS}/audit/report.pdf",
            category="Privacy",
            labels={"report": "audit of every method"},
        ),
    log:
        f"{RESULTS}/logs/audit/report.log",
    conda:
        LOCK
    params:
        results=lambda wildcards: RESULTS,
        methods=[],
        study="",
    shell:
        "clipnoise audit report --results {params.results:q}/audit --methods {params.methods}"
        " --study={params.study:q} --template {input.template:q} --out {output:q} > {log:q} 2>&1"


# The private methods of one study and nothing else; the study's tables then show what was found.
use rule audit_report as study_audit with:
    input:
        audits=lambda wildcards: expand(
            f"{RESULTS}/audit/{{kind}}/{{method}}.json",
            kind=["contract", "empirical"],
            method=claiming_methods(plan.methods(wildcards.study)),
        ),
        template=f"{TEMPLATES}/audit.typ",
        shared=SHARED,
    output:
        report(
            f"{REPORTS}/{{study}}/audit.pdf",
            category="{study}",
            labels={"report": "audit of its methods"},
        ),
    log:
        f"{RESULTS}/logs/audit/reports/{{study}}.log",
    params:
        results=lambda wildcards: RESULTS,
        methods=lambda wildcards: claiming_methods(plan.methods(wildcards.study)),
        study=lambda wildcards: wildcards.study,


rule reaccount:
    input:
        published=BASE / "reports/published/reaccounting.yaml",
        template=f"{TEMPLATES}/audit.typ",
        shared=SHARED,
    output:
        table=f"{RESULTS}/reaccounting.csv",
        pdf=report(
            f"{REPORTS}/reaccounting/report.pdf",
            category="Privacy",
            labels={"report": "published ε, computed again"},
        ),
    log:
        f"{RESULTS}/logs/reaccount.log",
    conda:
        LOCK
    shell:
        "clipnoise reaccount --published {input.published:q} --template {input.template:q}"
        " --out {output.table:q} --report {output.pdf:q} > {log:q} 2>&1"
