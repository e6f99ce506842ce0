use proptest::prelude::*;

use contract::gpu::State;
use contract::request::{Asked, Source, Words};

use super::*;
use crate::slot::{Take, taken};
use crate::testing::{count, ids, inventory};

/// Four GPUs: 0, 1, 2 are A100s (2 is lost), 3 is an A10.
fn four() -> Inventory {
    let mut inventory = inventory(4);
    inventory.gpus[2].unavailable = Some(Unavailable::new(State::Lost, "it fell off the bus"));
    inventory.gpus[3].model = Some("NVIDIA A10".into());
    inventory
}

fn kind(mut request: Request, kind: &str) -> Request {
    request.kind = Some(kind.into());
    request
}

/// Minors of the answer, or the refusal.
fn ask(inventory: &Inventory, taken: &[u32], request: &Request, previous: &[u32]) -> Result<Vec<u32>, Refusal> {
    let pci = |n: &u32| format!("0000:{:02x}:00.0", n + 1);
    let taken: Vec<String> = taken.iter().map(pci).collect();
    let previous: Vec<String> = previous.iter().map(pci).collect();
    allocate(inventory, &|pci| taken.iter().any(|t| t == pci), request, &previous)
        .map(|gpus| gpus.iter().filter_map(|gpu| gpu.minor).collect())
}

/// D25: what is asked, present and free, and what became of the rest; the code says what would help.
#[test]
fn every_state_is_counted_under_its_name() {
    use State::*;
    type Row = (&'static [State], u32, &'static [u32], Code, &'static str, &'static str);
    let table: [Row; 18] = [
        (&[Unbound], 1, &[], Code::GpuUnavailable, "gpu-unbound", "1 present, 0 free: 1 without a driver"),
        (&[Vfio], 1, &[], Code::GpuUnavailable, "gpu-vfio", "0 free: 1 bound to vfio-pci"),
        (&[OtherDriver], 1, &[], Code::GpuUnavailable, "gpu-other-driver", "1 held by another driver"),
        (&[DriverMissing], 1, &[], Code::DriverNotReady, "driver-not-ready", "1 waiting for the driver"),
        (&[NodeMissing], 1, &[], Code::DriverNotReady, "node-missing", "1 without a device node"),
        (&[NodeMismatch], 1, &[], Code::GpuUnavailable, "node-mismatch", "1 with a wrong device node"),
        (&[Lost], 1, &[], Code::GpuUnavailable, "gpu-lost", "1 lost"),
        (&[Failing], 1, &[], Code::GpuUnavailable, "gpu-failing", "1 failing"),
        (&[Excluded], 1, &[], Code::GpuUnavailable, "gpu-excluded", "1 excluded"),
        (&[Ambiguous], 1, &[], Code::GpuUnavailable, "gpu-ambiguous", "1 of doubtful identity"),
        (&[MigEmpty], 1, &[], Code::GpuUnavailable, "mig-empty", "1 in MIG mode without instances"),
        (&[Busy], 1, &[], Code::GpuUnavailable, "gpu-busy", "1 in use outside any lease"),
        (
            &[Lost, Vfio],
            2,
            &[3],
            Code::CapacityFull,
            "capacity",
            "4 present, 1 free: 1 lost, 1 bound to vfio-pci, 1 taken",
        ),
        (
            &[Lost, Vfio],
            3,
            &[3],
            Code::GpuUnavailable,
            "gpu-unavailable",
            "1 free: 1 lost, 1 bound to vfio-pci, 1 taken",
        ),
        (&[Lost, NodeMissing], 3, &[3], Code::DriverNotReady, "gpu-unavailable", "1 without a device node, 1 taken"),
        // What is merely taken is said first, whatever else is the matter.
        (&[Busy, Lost], 2, &[3], Code::CapacityFull, "capacity", "1 in use outside any lease, 1 lost, 1 taken"),
        (&[NodeMissing, Lost], 2, &[3], Code::CapacityFull, "capacity", "1 lost, 1 taken"),
        (&[Busy, Busy], 4, &[], Code::GpuUnavailable, "gpu-busy", "2 free: 2 in use outside any lease"),
    ];
    for (states, asked, taken, code, rule, words) in table {
        let mut node = inventory(if states.len() == 1 { 1 } else { 4 });
        for (gpu, state) in node.gpus.iter_mut().zip(states) {
            gpu.unavailable = Some(Unavailable::new(*state, "why"));
        }
        let refusal = ask(&node, taken, &count(asked), &[]).unwrap_err();
        assert_eq!((refusal.code, refusal.rule), (code, rule), "{states:?}: {refusal}");
        // Where another look could end it, the runtime looks.
        let over = states.iter().any(|state| state.may_be_over());
        assert_eq!(refusal.may_be_over, code != Code::CapacityFull || over, "{states:?}: {refusal}");
        assert!(refusal.message.ends_with(words), "{states:?}: {refusal}");
        // By name it is refused for what it is, and the others are there.
        let named = ask(&node, taken, &ids(&["nvidia0"]), &[]).unwrap_err();
        assert_eq!(named.rule, states[0].rule(), "{named}");
        assert_eq!(named.message.ends_with(": why"), states[0] != Busy, "{named}");
        assert_eq!(states[0].awaits_driver(), named.code == Code::DriverNotReady, "{named}");
        if states.len() > 1 {
            assert_eq!(ask(&node, &[], &count(1), &[]).unwrap(), [2]);
        }
    }
}

/// D25: indices and words of `NVIDIA_VISIBLE_DEVICES`. What this node does not have is another failure than what is taken.
#[test]
fn d25_names_of_tools_that_count_gpus() {
    let node = inventory(1);
    let named = |names: &[&str]| Request { source: Source::VisibleDevices, ..ids(names) };
    for (names, taken, expected) in [
        (&["0"][..], &[][..], Ok(())),
        (&["0", "0"], &[], Ok(())),
        (&["GPU-abcd0000"], &[], Ok(())),
        (&["0"], &[0], Err((Code::CapacityFull, "1 GPU asked by name, 1 of them taken; 1 present, 0 free"))),
        (&["1"], &[], Err((Code::UnknownGpu, "this node has 1 GPU and none of that name"))),
        (&["0", "1"], &[], Err((Code::UnknownGpu, "this node has 1 GPU and none of that name"))),
        (&["false"], &[], Err((Code::UnknownGpu, "this node has 1 GPU and none of that name"))),
        (&["GPU-ffff"], &[], Err((Code::UnknownGpu, "this node has 1 GPU and none of that name"))),
    ] {
        let answer = ask(&node, taken, &named(names), &[]);
        match expected {
            Ok(()) => assert_eq!(answer.unwrap(), [0], "{names:?}"),
            Err((code, words)) => {
                let refusal = answer.unwrap_err();
                assert_eq!((refusal.code, refusal.message.as_str()), (code, words), "{names:?}");
                assert!(code != Code::UnknownGpu || refusal.help.contains("nvidia0, GPU-<uuid> or PCI"), "{refusal}");
            }
        }
    }
    let counted = ask(&node, &[], &count(2), &[]).unwrap_err();
    assert_eq!((counted.code, counted.message.as_str()), (Code::UnknownGpu, "2 GPUs asked, this node has 1"));
}

#[test]
fn grants() {
    let node = four();
    for (request, taken, previous, granted) in [
        (count(1), vec![], vec![], vec![0]),
        (count(1), vec![0], vec![], vec![1]),
        (count(2), vec![0], vec![], vec![1, 3]),
        (count(3), vec![], vec![], vec![0, 1, 3]),
        // What it had before, when that is free, of the right kind and in order; addresses decide the rest.
        (count(1), vec![], vec![3], vec![3]),
        (count(2), vec![], vec![3], vec![0, 3]),
        (count(1), vec![3], vec![3], vec![0]),
        (count(1), vec![], vec![2], vec![0]),
        (kind(count(1), "a100"), vec![], vec![3], vec![0]),
        (kind(count(1), "a10"), vec![], vec![], vec![3]),
        (kind(count(1), "NVIDIA a100-sxm4"), vec![0], vec![], vec![1]),
        (ids(&["nvidia3"]), vec![], vec![0], vec![3]),
        (ids(&["NVIDIA1", "0000:01:00.0"]), vec![3], vec![], vec![1, 0]),
        (ids(&["GPU-abcd0001"]), vec![], vec![], vec![1]),
        (ids(&["gpu-ABCD0003-aaaa-bbbb-cccc-000000000003"]), vec![], vec![], vec![3]),
        (kind(ids(&["nvidia3"]), "a10"), vec![], vec![], vec![3]),
    ] {
        assert_eq!(
            ask(&node, &taken, &request, &previous).unwrap(),
            granted,
            "{request:?} taken {taken:?} previous {previous:?}"
        );
    }
}

#[test]
fn refusals() {
    let node = four();
    let profile = Request { profile: Some("1g.10gb".into()), ..count(1) };
    let mismatched = Request { count: 2, ..ids(&["nvidia0"]) };
    for (request, taken, code, words) in [
        (profile, vec![], Code::UnknownGpu, "no MIG instances"),
        (ids(&["MIG-1234"]), vec![], Code::UnknownGpu, "no MIG instances"),
        (count(0), vec![], Code::InvalidGpuRequest, "0 GPUs"),
        (mismatched, vec![], Code::InvalidGpuRequest, "the count is 2 and 1 ids"),
        (ids(&["nvidia7"]), vec![], Code::UnknownGpu, "this node has 4 GPUs"),
        (ids(&["GPU-"]), vec![], Code::UnknownGpu, "none of that name"),
        (ids(&["GPU-ffff"]), vec![], Code::UnknownGpu, "none of that name"),
        (ids(&["GPU-abcd"]), vec![], Code::InvalidGpuRequest, "GPU-abcd is the beginning of 4 UUIDs"),
        (ids(&["nvidia0", "1:0.0"]), vec![], Code::InvalidGpuRequest, "nvidia0 and 1:0.0 are the same GPU"),
        (ids(&["nvidia0", "GPU-abcd0000"]), vec![], Code::InvalidGpuRequest, "the same GPU"),
        (kind(ids(&["nvidia3"]), "a100"), vec![], Code::UnknownGpu, "nvidia3 is not of kind \"a100\""),
        (ids(&["nvidia2"]), vec![], Code::GpuUnavailable, "fell off the bus"),
        (ids(&["nvidia0", "nvidia2"]), vec![0], Code::GpuUnavailable, "nvidia2"),
        (ids(&["nvidia0", "nvidia9"]), vec![0], Code::UnknownGpu, "none of that name"),
        (
            ids(&["nvidia0", "nvidia1"]),
            vec![0],
            Code::CapacityFull,
            "2 GPUs asked by name, 1 of them taken; 4 present, 2 free",
        ),
        (count(5), vec![], Code::UnknownGpu, "5 GPUs asked, this node has 4"),
        (
            kind(count(1), "h100"),
            vec![],
            Code::UnknownGpu,
            "1 GPU asked, this node has 0 of kind \"h100\", among 4 GPUs in all",
        ),
        (kind(count(2), "a10"), vec![], Code::UnknownGpu, "2 GPUs asked, this node has 1 of kind"),
        (count(4), vec![], Code::GpuUnavailable, "4 GPUs asked, 4 present, 3 free: 1 lost"),
        (count(4), vec![0, 1, 3], Code::GpuUnavailable, "4 present, 0 free: 1 lost, 3 taken"),
        (kind(count(3), "a100"), vec![0], Code::GpuUnavailable, "3 present, 1 free: 1 lost, 1 taken"),
        (count(3), vec![1], Code::CapacityFull, "3 GPUs asked, 4 present, 2 free: 1 lost, 1 taken"),
        (kind(count(1), "a10"), vec![3], Code::CapacityFull, "1 GPU of kind \"a10\" asked, 1 present, 0 free: 1 taken"),
    ] {
        let refusal = ask(&node, &taken, &request, &[]).unwrap_err();
        assert_eq!(refusal.code, code, "{request:?}: {refusal}");
        assert!(refusal.message.contains(words), "{request:?}: {refusal}");
        assert!(!refusal.help.is_empty(), "{refusal}");
        // A tenant learns no other GPU's name.
        let learnt =
            node.gpus.iter().filter_map(|gpu| gpu.uuid.as_deref()).find(|uuid| refusal.to_string().contains(uuid));
        assert_eq!(learnt, None, "{refusal}");
    }
}

/// D28: who names a GPU that is gone learns what is in its place; who counts gets what is there.
#[test]
fn d28_a_gpu_that_is_gone_is_said_to_be_gone() {
    let mut node = four();
    let uuid = |n: u32| format!("GPU-ffff{n:04}-aaaa-bbbb-cccc-00000000000{n}");
    let gone = [(1, "0000:01:00.0"), (2, "0000:09:00.0"), (3, "0000:02:00.0"), (4, "0000:01:00.0")];
    node.former = Some(gone.map(|(n, pci)| (uuid(n), pci.to_owned())).to_vec());
    node.gpus[1].uuid = None;
    let now = node.gpus[0].uuid.clone().unwrap();
    let in_first = format!("{} is gone; 0000:01:00.0 (nvidia0) now holds {now}", uuid(1));
    let nameless = format!("{} is gone; 0000:02:00.0 (nvidia1) now holds one that the driver does not name", uuid(3));
    for (id, words) in [
        (uuid(1), in_first.as_str()),
        (uuid(1).to_uppercase(), &in_first),
        ("GPU-ffff0001".into(), &in_first),
        (uuid(2), &format!("{} is gone; 0000:09:00.0 holds no GPU now", uuid(2))),
        (uuid(3), &nameless),
        // Trying letters tells no names.
        ("GPU-ffff000".into(), "this node has 4 GPUs and none of that name"),
        (uuid(5), "this node has 4 GPUs and none of that name"),
    ] {
        let refusal = ask(&node, &[], &ids(&[&id]), &[]).unwrap_err();
        assert_eq!((refusal.code, refusal.rule, refusal.message.as_str()), (Code::UnknownGpu, "request-ids", words));
    }
    assert_eq!(ask(&node, &[], &count(1), &[0]).unwrap(), [0]);
}

#[test]
fn refusals_name_the_word_and_its_value() {
    let mut words = Words::default();
    words.set("count", "/env/1".into(), "1".into());
    words.set("ids", "/env/2".into(), "nvidia0".into());
    let Ok(Asked::Gpus(named)) = words.ask(Source::Environment) else { panic!() };
    let mut words = Words::default();
    words.set("count", "/env/1".into(), "5".into());
    let Ok(Asked::Gpus(counted)) = words.ask(Source::Environment) else { panic!() };
    let renamed = |id: &str| Request { ids: vec![id.into()], ..named.clone() };
    for (request, taken, at, value) in [
        (named.clone(), vec![0], "/env/2", "nvidia0"),
        (renamed("nvidia2"), vec![], "/env/2", "nvidia2"),
        (renamed("nvidia9"), vec![], "/env/2", "nvidia9"),
        (renamed("GPU-abcd"), vec![], "/env/2", "GPU-abcd"),
        (kind(named.clone(), "h100"), vec![], "/env/2", "nvidia0"),
        (counted.clone(), vec![], "/env/1", "5"),
        (Request { count: 4, ..counted.clone() }, vec![], "/env/1", "4"),
        (Request { count: 3, ..counted }, vec![0], "/env/1", "3"),
    ] {
        let refusal = ask(&four(), &taken, &request, &[]).unwrap_err();
        assert_eq!((refusal.at.as_str(), refusal.value.as_str()), (at, value), "{refusal}");
    }
}

#[test]
fn a_lease_takes_its_address_and_whatever_has_its_device_number() {
    let mut node = inventory(3);
    let taken_by = |node: &Inventory, minor: Option<u32>| {
        taken(node, [Take { slot: "0000:02:00.0", minor, named: false }].into_iter())
    };
    assert_eq!(taken_by(&node, Some(1)), ["0000:02:00.0"]);
    assert_eq!(taken_by(&node, None), ["0000:02:00.0"]);
    // The driver numbers the first two the other way round while 195:1 is open.
    (node.gpus[0].minor, node.gpus[1].minor) = (Some(1), Some(0));
    assert_eq!(taken_by(&node, Some(1)), ["0000:01:00.0", "0000:02:00.0"]);
    (node.gpus[0].minor, node.gpus[2].minor) = (None, None);
    assert_eq!(taken_by(&node, None), ["0000:02:00.0"], "no number is not a number");
}

/// D10: what was promised while it was well is not handed out when it is lost; in use by its own holder it is.
#[test]
fn what_was_promised_must_still_be_in_order() {
    let promised = |node: &Inventory| allocate(node, &|_| false, &ids(&["nvidia0", "nvidia1:1"]), &[]).unwrap();
    for (state, code) in [
        (State::Lost, Some(Code::GpuUnavailable)),
        (State::Failing, Some(Code::GpuUnavailable)),
        (State::NodeMissing, Some(Code::DriverNotReady)),
        (State::Busy, None),
    ] {
        let mut node = inventory(3);
        crate::testing::cut(&mut node.gpus[1], &["1g.5gb", "1g.5gb"]);
        let granted = promised(&node);
        let told = |node: &Inventory| in_order(node, &granted).err().map(|refusal| refusal.code);
        assert_eq!(told(&node), None);
        let why = || Some(Unavailable::new(state, "why"));
        let mut other = node.clone();
        (other.gpus[2].unavailable, other.gpus[1].partitions[0].unavailable) = (why(), why());
        assert_eq!(told(&other), None, "{state:?}: it is another one's");
        for change in [
            |node: &mut Inventory, why| node.gpus[0].unavailable = why,
            |node: &mut Inventory, why| node.gpus[1].unavailable = why,
            |node: &mut Inventory, why| node.gpus[1].partitions[1].unavailable = why,
        ] {
            let mut node = node.clone();
            change(&mut node, why());
            assert_eq!(told(&node), code, "{state:?}");
        }
    }
}

/// D21: another instance under the number of a promised one is not handed out for it.
#[test]
fn what_was_promised_is_no_other() {
    let mut node = inventory(1);
    crate::testing::cut(&mut node.gpus[0], &["1g.5gb", "1g.5gb"]);
    let granted = allocate(&node, &|_| false, &ids(&["0:1"]), &[]).unwrap();
    let part = |change: fn(&mut contract::gpu::Partition)| {
        let mut node = node.clone();
        change(&mut node.gpus[0].partitions[1]);
        in_order(&node, &granted).err().map(|refusal| (refusal.code, refusal.may_be_over))
    };
    let stale = Some((Code::ContractStale, false));
    assert_eq!(part(|_| ()), None);
    assert_eq!(part(|part| part.profile = "2g.10gb".into()), stale);
    assert_eq!(part(|part| part.uuid = Some("MIG-other".into())), stale);
    assert_eq!(part(|part| (part.uuid, part.profile) = (None, "unknown".into())), None, "nobody tells");
}

#[test]
fn a_node_without_gpus_says_so() {
    let refusal = ask(&inventory(0), &[], &count(1), &[]).unwrap_err();
    assert_eq!((refusal.code, refusal.message.as_str()), (Code::UnknownGpu, "1 GPU asked, this node has 0"));
}

#[test]
fn a_gpu_without_uuid_model_or_minor_is_granted_by_address() {
    let mut node = inventory(1);
    let bare = &mut node.gpus[0];
    (bare.uuid, bare.model, bare.minor) = (None, None, None);
    assert!(ask(&node, &[], &ids(&["nvidia0"]), &[]).is_err());
    assert!(ask(&node, &[], &kind(count(1), "a100"), &[]).is_err());
    assert_eq!(allocate(&node, &|_| false, &ids(&["0000:01:00.0"]), &[]).unwrap()[0].pci, "0000:01:00.0");
}

proptest! {
    /// Whatever is taken: by count, all that is granted is free, usable, different, and exactly as many as asked; and it
    /// is refused only if so many are not free.
    #[test]
    fn by_count_is_exact(asked in 1_u32..9, taken in proptest::collection::vec(any::<bool>(), 8), lost in proptest::collection::vec(any::<bool>(), 8), previous in proptest::collection::vec(0_u32..8, 0..4)) {
        let mut node = inventory(8);
        for (gpu, lost) in node.gpus.iter_mut().zip(&lost) {
            gpu.unavailable = lost.then(|| Unavailable::new(State::Lost, "lost"));
        }
        let taken: Vec<u32> = (0..8).filter(|n| taken[*n as usize]).collect();
        let free: Vec<u32> = (0..8).filter(|n| !taken.contains(n) && !lost[*n as usize]).collect();
        match ask(&node, &taken, &count(asked), &previous) {
            Ok(granted) => {
                prop_assert_eq!(granted.len(), asked as usize);
                prop_assert!(granted.windows(2).all(|pair| pair[0] < pair[1]));
                prop_assert!(granted.iter().all(|n| free.contains(n)));
                let kept = previous.iter().filter(|n| free.contains(n)).collect::<std::collections::BTreeSet<_>>();
                let again = kept.iter().filter(|n| granted.contains(n)).count();
                prop_assert_eq!(again, kept.len().min(asked as usize));
            }
            Err(refusal) => {
                prop_assert!(free.len() < asked as usize, "{}", refusal);
                let usable = lost.iter().filter(|lost| !**lost).count();
                let code = if asked > 8 { Code::UnknownGpu } else if usable < asked as usize { Code::GpuUnavailable } else { Code::CapacityFull };
                prop_assert_eq!(refusal.code, code);
            }
        }
    }
}

/// Names of CDI and of `NVIDIA_VISIBLE_DEVICES`: a number is an index, twice is once, and all is what is free.
#[test]
fn names_of_tools_that_count_gpus() {
    let mut node = inventory(3);
    // Index 0 is nvidia10 and so on; the last is cut.
    (10..).zip(&mut node.gpus).for_each(|(minor, gpu)| gpu.minor = Some(minor));
    crate::testing::cut(&mut node.gpus[2], &["1g.10gb", "1g.10gb"]);
    let first = node.gpus[0].pci.clone();
    for (names, source, count, taken, expected) in [
        (&["0"][..], Source::Cdi, 1, false, "nvidia10"),
        (&["0"], Source::Annotation, 1, false, "UNKNOWN_GPU"),
        (&["0", "nvidia10"], Source::VisibleDevices, 2, false, "nvidia10"),
        (&["nvidia10", "0000:01:00.0"], Source::Environment, 2, false, "INVALID_GPU_REQUEST"),
        (&["2"], Source::Cdi, 1, false, "GPU_UNAVAILABLE"),
        (&["2:1"], Source::Cdi, 1, false, "nvidia12:1"),
        (&["all"], Source::VisibleDevices, 256, false, "nvidia10 nvidia11 nvidia12:0 nvidia12:1"),
        (&["all"], Source::Cdi, 256, true, "nvidia11 nvidia12:0 nvidia12:1"),
        (&["all"], Source::Cdi, 2, false, "nvidia10 nvidia11"),
        (&["all"], Source::Environment, 1, false, "UNKNOWN_GPU"),
    ] {
        let request = Request { source, count, ..ids(names) };
        let granted = allocate(&node, &|slot| taken && slot == first, &request, &[]);
        let told = granted.map(|all| all.iter().map(Granted::name).collect::<Vec<_>>().join(" "));
        assert_eq!(told.unwrap_or_else(|refusal| refusal.code.name().into()), expected, "{names:?} {source:?}");
    }
    let four = four();
    let all = Request { source: Source::Cdi, count: 256, ..ids(&["all"]) };
    assert_eq!(ask(&four, &[0, 1, 3], &all, &[]).unwrap_err().code, Code::CapacityFull);
    let mut lost = four;
    lost.gpus.truncate(3);
    lost.gpus.drain(..2);
    assert_eq!(ask(&lost, &[], &all, &[]).unwrap_err().code, Code::GpuUnavailable);
}
