# Tuning runs are ordinary runs; the runs that wait for them read the choice.
rule select:
    input:
        lambda wildcards: plan.done_files(plan.search(wildcards.key).runs),
    output:
        f"{RESULTS}/tuning/{{key}}.json",
    log:
        f"{RESULTS}/logs/select/{{key}}.log",
    priority: 1000  # runs wait for it
    retries: 0  # a damaged result is set aside: a second try would find none
    conda:
        LOCK
    params:
        options=lambda wildcards: plan.search_options(wildcards.key),
    message:
        "select {plan:select {wildcards.key}}"
    shell:
        "clipnoise select {params.options} --out {output:q} > {log:q} 2>&1"
