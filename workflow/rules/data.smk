# Nothing depends on it: what is prepared needs no network. `snakemake fetch_all` fetches what the
# configured studies read; on a cluster it runs where Snakemake does.
localrules:
    fetch,
    fetch_all,


rule fetch:
    output:
        touch(f"{CACHE}/raw/{{dataset}}/fetched"),
    log:
        f"{RESULTS}/logs/fetch/{{dataset}}.log",
    conda:
        LOCK
    params:
        cache=lambda wildcards: CACHE,
        weights=lambda wildcards: plan.config.weights,
    shell:
        "clipnoise data fetch {wildcards.dataset} --cache {params.cache:q}"
        " --weights {params.weights:q} > {log:q} 2>&1"


rule fetch_all:
    input:
        plan.fetched(),


rule prepare:
    output:
        f"{CACHE}/{{prepared}}/manifest.json",
    log:
        f"{RESULTS}/logs/prepare/{{prepared}}.log",
    priority: 1000  # runs wait for it
    conda:
        LOCK
    params:
        cache=lambda wildcards: CACHE,
        weights=lambda wildcards: plan.config.weights,
        preparation=lambda wildcards: plan.preparation(wildcards.prepared),
    shell:
        "clipnoise data prepare {params.preparation} --cache {params.cache:q}"
        " --weights {params.weights:q} > {log:q} 2>&1"
