//! The node's own record in a tenant's mount of a tree above it: nobody may read or change who has which GPU.

use integration::{Result, Spec};

use crate::Bench;

#[test]
fn a_container_cannot_read_or_free_leases_through_a_mount() -> Result<()> {
    let Some(bench) = Bench::new("a_container_cannot_read_or_free_leases_through_a_mount", 2)? else { return Ok(()) };
    let asking = Spec::new().env("QUILT_GPU_COUNT", "1");
    bench.sleeper("holder", &asking)?;
    let leases = bench.site.leases_on_disk()?;
    assert_eq!(leases.len(), 1);
    let state = bench.site.quilt.state();
    // The configuration lies between: that folder itself may not be bound.
    let above = state.parent().and_then(|folder| folder.parent()).unwrap();
    let top = above.parent().unwrap();
    // Who may rename a folder in between puts another record in its place.
    let bundle = bench.bundle("higher", &Spec::new().bind(top, "/x", &[]))?;
    bench.refused("higher", &bundle, &["UNSAFE_SPEC", "in its place"])?;
    for (id, source, options) in [("rw", above, &[][..]), ("ro", above, &["ro"]), ("top", top, &["ro"])] {
        let below = state.strip_prefix(source).unwrap().display().to_string();
        let script = format!("cd /x; find {below} -mindepth 1; rm -rf {below}/leases; mkdir -p {below}/mine");
        let spec = Spec::new().bind(source, "/x", options).args(["sh", "-c", &script]);
        let output = bench.runc.whole_life(id, &bench.bundle(id, &spec)?)?;
        assert!(!output.contains("leases"), "{id}: {output}");
        assert!(!state.join("mine").exists(), "{id}");
        assert_eq!(bench.site.leases_on_disk()?, leases, "{id}");
    }
    bench.runc.delete("holder", true)?.checked()?;
    Ok(())
}
