//! A configuration in which something is wrong: what can be read of it still counts, and no GPU is granted.

use std::fs;

use integration::{Error, Result, Spec};

use crate::Bench;

#[test]
fn a_mistake_elsewhere_opens_nothing() -> Result<()> {
    let Some(bench) = Bench::new("a_mistake_elsewhere_opens_nothing", 1)? else { return Ok(()) };
    let file = bench.site.quilt.config();
    let failed = |cause: std::io::Error| Error::new(cause.to_string());
    let good = fs::read_to_string(&file).map_err(failed)?;
    let hardened = good.replace("[policy]\n", "[policy]\nprofile = \"hardened\"\n");
    assert_ne!(hardened, good, "this fixture must be able to fail");
    let admin = Spec::new().capability("CAP_SYS_ADMIN");
    bench.runc.whole_life("admin", &bench.bundle("admin", &admin.clone().args(["true"]))?)?;
    for (id, text) in [
        ("whole", hardened.clone()),
        ("key", format!("{hardened}\n[nonsense]\nkey = 1\n")),
        ("value", format!("{hardened}\n[request]\nenvironment = \"perhaps\"\n")),
        ("syntax", format!("{hardened}\n[request\n")),
    ] {
        fs::write(&file, &text).map_err(failed)?;
        let records = bench.site.quilt.audit().len();
        bench.refused(id, &bench.sharing(id, &admin)?, &["UNSAFE_SPEC", "CAP_SYS_ADMIN"])?;
        assert_eq!(bench.site.quilt.audit().len(), records + 1, "{id}: the record is in another log");
        if id == "whole" {
            continue;
        }
        bench.refused(
            id,
            &bench.sharing(&format!("{id}-gpu"), &Spec::new().env("QUILT_GPU_COUNT", "1"))?,
            &["the configuration does not count"],
        )?;
        bench.runc.whole_life(id, &bench.bundle(&format!("{id}-plain"), &Spec::new().args(["true"]))?)?;
        let answer = bench.site.quilt.cli(&["lease", "list"])?;
        assert_eq!(answer.status.code(), Some(2), "{answer:?}");
        assert!(answer.stderr.starts_with(&format!("quilt-gpu: {}: the configuration", file.display())), "{answer:?}");
    }
    Ok(())
}
