rule calibrate:
    output:
        f"{RESULTS}/calibration/{{key}}.json",
    log:
        f"{RESULTS}/logs/calibrate/{{key}}.log",
    priority: 1000  # runs wait for it
    conda:
        LOCK
    params:
        options=lambda wildcards: plan.calibration(wildcards.key).options(),
    message:
        "calibrate {plan:calibrate {wildcards.key}}"
    shell:
        "clipnoise calibrate {params.options} --out {output:q} > {log:q} 2>&1"
