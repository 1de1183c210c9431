rule prepare:
    output:
        f"{CACHE}/{{dataset}}/manifest.json",
    log:
        f"{RESULTS}/logs/prepare/{{dataset}}.log",
    benchmark:
        f"{RESULTS}/logs/prepare/{{dataset}}.jsonl"
    conda:
        LOCK
    params:
        cache=lambda wildcards: CACHE,
    shell:
        "clipnoise data prepare {wildcards.dataset} --cache {params.cache:q} > {log:q} 2>&1"
