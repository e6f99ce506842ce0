//! Documents of all types, whole and broken. The samples have NVIDIA's form and values that are made up.

use proptest::prelude::*;

use super::*;

const SAMPLES: [(&str, &str); 6] = [
    ("470", include_str!("samples/470-v11.xml")),
    ("535", include_str!("samples/535-mig-v12.xml")),
    ("550", include_str!("samples/550-not-found-v12.xml")),
    ("570", include_str!("samples/570-v12.xml")),
    ("580", include_str!("samples/580-v13.xml")),
    ("590", include_str!("samples/590-lost-v13.xml")),
];

fn sample(name: &str) -> &'static str {
    SAMPLES.iter().find(|(is, _)| *is == name).unwrap().1
}

fn read(name: &str) -> Told {
    told(sample(name).as_bytes()).unwrap()
}

fn states(told: &Told) -> Vec<Option<State>> {
    told.gpus.iter().map(|gpu| gpu.unavailable.as_ref().map(|it| it.state)).collect()
}

#[test]
fn all_types_tell_the_same_things() {
    type Row<'a> = (&'a str, &'a str, Option<&'a str>, &'a str, Option<u32>, &'a str, Option<u64>, Option<&'a str>);
    let table: [Row<'_>; 6] = [
        (
            "470",
            "470.256.02",
            Some("11.4"),
            "0000:1a:00.0",
            Some(0),
            "Tesla V100-SXM2-32GB",
            Some(32510),
            Some("passthrough"),
        ),
        (
            "535",
            "535.129.03",
            Some("12.2"),
            "0000:41:00.0",
            Some(3),
            "NVIDIA A100-SXM4-40GB",
            Some(40960),
            Some("none"),
        ),
        ("550", "550.54.14", None, "0000:0b:00.0", None, "NVIDIA L4", Some(23034), Some("vgpu")),
        (
            "570",
            "570.148.08",
            Some("12.8"),
            "0000:41:00.0",
            Some(0),
            "NVIDIA H100 80GB HBM3",
            Some(81559),
            Some("none"),
        ),
        (
            "580",
            "580.105.08",
            Some("13.0"),
            "0000:c1:00.0",
            Some(0),
            "NVIDIA RTX PRO 6000 Blackwell",
            Some(97887),
            Some("none"),
        ),
        ("590", "590.44.01", Some("13.1"), "0008:01:00.0", Some(0), "NVIDIA GB200", Some(189_471), Some("none")),
    ];
    for (name, driver, cuda, pci, minor, model, memory, virtualization) in table {
        let told = read(name);
        assert_eq!((told.driver_version.as_deref(), told.cuda_version.as_deref()), (Some(driver), cuda), "{name}");
        let gpu = &told.gpus[0];
        assert_eq!((gpu.pci.as_str(), gpu.minor, gpu.model.as_deref()), (pci, minor, Some(model)), "{name}");
        assert_eq!((gpu.memory_mb, gpu.virtualization.as_deref()), (memory, virtualization), "{name}");
        assert!(gpu.uuid.as_ref().unwrap().starts_with("GPU-0000000"), "{name}");
    }
}

#[test]
fn mig_devices_have_their_ids_and_memory() {
    let told = read("535");
    assert_eq!(told.gpus[0].mig, Some(MigMode { enabled: true, pending: true }));
    let instances: Vec<_> = told.gpus[0].instances.iter().map(|it| (it.index, it.gi, it.ci, it.memory_mb)).collect();
    assert_eq!(instances, [(0, 3, 0, Some(9856)), (1, 4, 0, Some(4864)), (2, 5, 0, Some(4864))]);
    assert_eq!(told.gpus[1].mig, Some(MigMode { enabled: true, pending: false }));
    assert_eq!(told.gpus[1].instances, []);
    assert_eq!(read("580").gpus[0].mig, None);

    let same_index = sample("535").replace("<index>1<", "<index>0<").replace("<index>2<", "<index>0<");
    let told = told_of(&same_index).unwrap();
    assert_eq!(told.gpus[0].instances.iter().map(|it| it.index).collect::<Vec<_>>(), [0, 1, 2]);
    let named = sample("535").replace("<index>1<", "<uuid>MIG-1</uuid><index>1<");
    assert_eq!(told_of(&named).unwrap().gpus[0].instances[1].uuid.as_deref(), Some("MIG-1"));
}

fn told_of(text: &str) -> Answer {
    told(text.as_bytes())
}

#[test]
fn health_is_what_any_element_says() {
    assert_eq!(states(&read("470")), [None, Some(State::Failing)]);
    assert_eq!(states(&read("535")), [None, Some(State::Failing)]);
    assert_eq!(states(&read("570")), [None]);
    assert_eq!(states(&read("580")), [Some(State::Failing)]);
    assert_eq!(states(&read("590")), [None, Some(State::Lost)]);
    let lost = &read("590").gpus[1];
    assert_eq!((lost.minor, lost.memory_mb, lost.mig), (Some(1), None, None));
    for (from, to, state) in [
        ("<reset_required>Requested functionality has been deprecated<", "<reset_required>Yes<", Some(State::Failing)),
        ("<gpu_recovery_action>None<", "<gpu_recovery_action>Reboot<", Some(State::Failing)),
        ("<gpu_recovery_action>None<", "<gpu_recovery_action>Drain and Reset<", Some(State::Failing)),
        ("<gpu_recovery_action>None<", "<gpu_recovery_action>Drain P2P<", None),
        ("<remapped_row_pending>No<", "<remapped_row_pending>Yes<", Some(State::Failing)),
        ("<gpu_util>0 %<", "<gpu_util>GPU requires reset<", Some(State::Failing)),
        ("<gpu_util>0 %<", "<gpu_util>Unknown Error<", None),
    ] {
        let text = sample("570").replace(from, to);
        assert_ne!(text, sample("570"), "{from}");
        assert_eq!(states(&told_of(&text).unwrap()), [state], "{to}");
    }
}

#[test]
fn what_is_not_whole_tells_nothing() {
    let whole = sample("570");
    let table: [(String, &str); 12] = [
        (String::new(), "no XML: nothing"),
        ("NVIDIA-SMI has failed because it couldn't communicate".into(), "no XML: NVIDIA-SMI has failed"),
        (whole.replace("</nvidia_smi_log>", ""), "ends in the middle"),
        (whole.replace("</gpu>", ""), "expected"),
        (whole.replace("<attached_gpus>1<", "<attached_gpus>2<"), "announces 2 GPUs and describes 1"),
        (whole.replace("<attached_gpus>1</attached_gpus>", ""), "announces no number of GPUs"),
        (format!("{whole}<nvidia_smi_log></nvidia_smi_log>"), "stands where nvidia_smi_log must stand"),
        (whole.replace("nvidia_smi_log", "other"), "the element other"),
        (whole.replace("\"nvsmi_device_v12.dtd\">", "\"x\" [<!ENTITY a \"b\">]>"), "rules of its own"),
        (whole.replace("NVIDIA H100", "&a;"), "the entity a"),
        (whole.replace("00000000:41:00.0", "x"), "no PCI address"),
        (whole.replace("<timestamp>", &"<a>".repeat(100)), "deeper than 32"),
    ];
    for (text, part) in table {
        let silence = told_of(&text).unwrap_err();
        assert_eq!((silence.source.as_str(), silence.kind), (SMI, Kind::Failed), "{part}");
        assert!(silence.why.contains(part), "{part}: {}", silence.why);
    }
    let mismatch = told_of("Failed to initialize NVML: Driver/library version mismatch\n").unwrap_err();
    assert_eq!(mismatch.kind, Kind::Mismatch);
    assert!(told(b"<?xml \xff").unwrap_err().why.contains("UTF-8"));
}

#[test]
fn warnings_before_and_characters_by_number_are_read() {
    let warned = format!("WARNING: infoROM is corrupted at gpu 0000:41:00.0\n{}", sample("570"));
    assert_eq!(told_of(&warned), told_of(sample("570")));
    let spelled = sample("570").replace("NVIDIA H100", "A &amp; B &#67; &lt;");
    assert_eq!(told_of(&spelled).unwrap().gpus[0].model.as_deref(), Some("A & B C < 80GB HBM3"));
}

proptest! {
    #[test]
    fn any_bytes_are_read(bytes in prop::collection::vec(any::<u8>(), 0..300)) {
        let _ = told(&bytes);
        let _ = told(&[b"<?xml version=\"1.0\" ?><nvidia_smi_log>".as_slice(), &bytes].concat());
    }

    /// A document cut anywhere tells nothing, unless only the end of the last line is missing.
    #[test]
    fn a_cut_document_tells_nothing(which in 0_usize..6, cut in any::<prop::sample::Index>()) {
        let text = SAMPLES[which].1;
        let at = cut.index(text.trim_end().len());
        prop_assert!(told(&text.as_bytes()[..at]).is_err());
    }

    #[test]
    fn any_damaged_document_is_read(which in 0_usize..6, at in any::<prop::sample::Index>(), byte: u8, len in 0_usize..20) {
        let mut bytes = SAMPLES[which].1.as_bytes().to_vec();
        let from = at.index(bytes.len());
        let to = (from + len).min(bytes.len());
        bytes.splice(from..to, [byte]);
        let _ = told(&bytes);
    }
}

#[test]
fn what_a_gpu_does_now_is_told_by_every_type() {
    let with = |inner: &str| {
        let text = format!(
            "<?xml version=\"1.0\"?><nvidia_smi_log><attached_gpus>1</attached_gpus><gpu id=\"00000000:31:00.0\">{inner}</gpu></nvidia_smi_log>"
        );
        told(text.as_bytes()).unwrap().gpus[0].live
    };
    let same = "<fb_memory_usage><total>80 MiB</total><used>4 MiB</used></fb_memory_usage>\
        <utilization><gpu_util>37 %</gpu_util></utilization><temperature><gpu_temp>61 C</gpu_temp></temperature>";
    let live =
        |power_mw| Live { utilization_percent: Some(37), memory_used_mb: Some(4), temperature_c: Some(61), power_mw };
    for (power, expected) in [
        ("<power_readings><power_draw>56.12 W</power_draw></power_readings>", Some(56_120)),
        ("<gpu_power_readings><power_draw>350.1 W</power_draw></gpu_power_readings>", Some(350_100)),
        (
            "<gpu_power_readings><power_draw>N/A</power_draw><instant_power_draw>7.05 W</instant_power_draw></gpu_power_readings>",
            Some(7_050),
        ),
        ("<gpu_power_readings><power_draw>[Unknown Error]</power_draw></gpu_power_readings>", None),
        ("<gpu_power_readings><power_draw>99999999.99 W</power_draw></gpu_power_readings>", None),
        ("<module_power_readings><power_draw>1.0 W</power_draw></module_power_readings>", None),
    ] {
        assert_eq!(with(&format!("{same}{power}")), live(expected), "{power}");
    }
    let not = "<fb_memory_usage><used>GPU is lost</used></fb_memory_usage><utilization><gpu_util>N/A</gpu_util></utilization>";
    assert_eq!(with(not), Live::default());
}
