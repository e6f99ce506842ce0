//! The guard: of whatever it accepts, the document that is written lets no GPU be opened outside the contract, by any
//! runtime's reading, shows none of ours and no node of a GPU's, has no injector's hook, and is accepted once more.

mod oracle;
mod rules;
mod spec;
mod world;

use cdi::{Edits, Mount};
use contract::Refusal;
use contract::config::{Policy, Profile};
use contract::inventory::{DeviceNode, Role};
use contract::json;
use guard::{Call, Case, HIDING, Judgement, LowLevel, Numbers};

use crate::choices::Choices;
use oracle::Outcome;
use world::{BUNDLE, LOG, OWN, PROGRAMS, World};

/// Programs that hooks may run in `hardened`.
const HOOKS: &[&str] = &["/usr/bin/dockerd"];

/// Holds the guard to it: bytes that are a spec are judged as it, all others make one up.
pub fn run(data: &[u8]) {
    if data.starts_with(b"{") {
        let world = World::of(&mut Choices::new(&[]));
        let (runc, crun) = (Ways::new(LowLevel::Runc), Ways::new(LowLevel::Crun));
        let asking = Ways { granted: vec![(195, 0), (195, 255)], gpu_asked: true, ..runc.clone() };
        let hardened = Ways { hardened: true, ..crun.clone() };
        [runc, crun, asking, hardened].iter().for_each(|ways| judged(data, &world, ways));
        return;
    }
    let choices = &mut Choices::new(data);
    let ways = Ways::of(choices);
    let world = World::of(choices);
    let spec = spec::made(choices, &world);
    judged(spec.to_string().as_bytes(), &world, &ways);
}

/// By whose rules a spec is judged, and what it is granted.
#[derive(Debug, Clone)]
struct Ways {
    low_level: LowLevel,
    hardened: bool,
    gpu_asked: bool,
    granted: Vec<(u32, u32)>,
}

impl Ways {
    fn new(low_level: LowLevel) -> Self {
        Self { low_level, hardened: false, gpu_asked: false, granted: Vec::new() }
    }

    fn of(choices: &mut Choices<'_>) -> Self {
        let low_level = *choices.of(&[LowLevel::Runc, LowLevel::Crun, LowLevel::Youki, LowLevel::Other]);
        let odd = choices.byte();
        let granted = [(195, 0), (195, 255), (511, 0), (226, 128)];
        let granted =
            granted.into_iter().enumerate().filter(|(n, _)| odd >> n & 1 == 1).map(|(_, node)| node).collect();
        let gpu_asked = odd & 0x30 == 0x30;
        Self {
            low_level,
            hardened: odd & 0xc0 == 0xc0,
            gpu_asked,
            granted: if gpu_asked { granted } else { Vec::new() },
        }
    }

    fn judge(&self, spec: &json::Node<'_>, world: &World) -> Judgement {
        let profile = if self.hardened { Profile::Hardened } else { Profile::Standard };
        let owned = |list: &[&str]| -> Vec<String> { list.iter().map(|path| (*path).to_owned()).collect() };
        let case = Case {
            spec,
            bundle: BUNDLE,
            gpu_asked: self.gpu_asked,
            asking: "QUILT_GPU_COUNT=1",
            low_level: self.low_level,
            policy: &Policy { profile, ..Policy::default() },
            own_paths: &owned(OWN),
            log_path: LOG,
            programs: &owned(PROGRAMS),
            hooks: &owned(HOOKS),
            replaced: &[],
            dev_root: world.dev_root,
            exceptions: &[],
            workload: None,
            call: Some(Call { id: "x", no_pivot: false }),
        };
        guard::judge(&case, world)
    }
}

fn judged(bytes: &[u8], world: &World, ways: &Ways) {
    let Ok(spec) = json::parse_oci(bytes) else { return };
    let judgement = ways.judge(&spec, world);
    for refusal in &judgement.refusals {
        assert!(!refusal.help.is_empty() && !refusal.message.is_empty(), "{refusal}");
    }
    // Where no filter can be attached nobody is granted a GPU, which is decided elsewhere.
    if !judgement.refusals.is_empty() || (ways.gpu_asked && !world.filters) {
        return;
    }
    let (edits, ours) = edits(&judgement, world, ways);
    let written = match cdi::apply(bytes, &spec, &edits) {
        Ok(written) => written,
        // A document of another shape where it would be edited is refused then.
        Err(_) => return,
    };
    let (Ok(before), Ok(after)) = (serde_json::from_slice(bytes), serde_json::from_slice(&written)) else {
        panic!("another reader refuses what was accepted")
    };
    let Ok(reread) = json::parse_oci(&written) else { panic!("what was written is refused") };
    let told: Vec<&str> = judgement.notes.iter().map(|note| note.rule).collect();
    Outcome { world, ways, before: &before, after: &after, ours: &ours, told: &told }.holds();
    if !ways.gpu_asked {
        let again = ways.judge(&reread, world);
        // Left as it is: `hardened` lets a sysfs be inside a read-only tree that it refuses alone, and what closes it there is it alone.
        let is_left = |refusal: &&Refusal| {
            let added = refusal
                .at
                .strip_prefix("/mounts/")
                .and_then(|rest| reread.get("mounts")?.items().get(rest.split('/').next()?.parse::<usize>().ok()?));
            let closes = added.is_some_and(|mount| {
                mount.get("options").is_some_and(|list| list.items().iter().any(|it| it.as_str() == Some("rro")))
            });
            ways.hardened && refusal.rule == "mount-sysfs-rw" && closes
        };
        let found: Vec<_> = again.refusals.iter().filter(|refusal| !is_left(refusal)).collect();
        assert!(found.is_empty(), "refused once it is written: {found:?}");
        assert_eq!((again.changes.rules, again.changes.read_only), (None, vec![]), "written, and to be changed again");
    }
}

/// What the runtime makes of a judgement, and the mounts among it that a contract brings.
fn edits(judgement: &Judgement, world: &World, ways: &Ways) -> (Edits, Vec<String>) {
    let changes = &judgement.changes;
    let mount = |one: &guard::ReadOnly| match &one.source {
        Some(source) => Mount::read_only(source, &one.destination, true),
        None => Mount::hiding(&one.destination, &HIDING),
    };
    let mut edits = Edits {
        drop_devices: changes.drop_devices.clone(),
        rules: changes.rules.clone(),
        inserted: changes.read_only.iter().map(|one| (one.before, mount(one))).collect(),
        ..Edits::default()
    };
    if !ways.gpu_asked {
        return (edits, Vec::new());
    }
    let numbers = judgement.gpus.clone().map_or_else(|| Numbers::read(world), Ok).unwrap_or_default();
    edits.rules = Some(guard::granted_rules(&judgement.rules, &ways.granted, &numbers));
    edits.nodes = ways.granted.iter().map(|(major, minor)| node(*major, *minor)).collect();
    edits.mounts.push(Mount::library("/usr/lib/libcuda.so.1", "/usr/lib/libcuda.so.1"));
    let ours = edits.mounts.iter().map(|mount| mount.destination.clone()).collect();
    (edits, ours)
}

fn node(major: u32, minor: u32) -> DeviceNode {
    let path = format!("/dev/granted-{major}-{minor}");
    DeviceNode { host_path: path.clone(), path, major, minor, mode: 0o666, uid: 0, gid: 0, role: Role::Compute }
}
