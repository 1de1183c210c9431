rule prepare:
    output:
        f"{CACHE}/{{prepared}}/manifest.json",
    log:
        f"{RESULTS}/logs/prepare/{{prepared}}.log",
    benchmark:
        f"{RESULTS}/logs/prepare/{{prepared}}.jsonl"
    conda:
        LOCK
    params:
        cache=lambda wildcards: CACHE,
        preparation=lambda wildcards: plan.preparation(wildcards.prepared),
    shell:
        "clipnoise data prepare {params.preparation} --cache {params.cache:q} > {log:q} 2>&1"
