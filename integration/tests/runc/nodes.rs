//! Nodes on which not every GPU is ready, and driver files besides libraries: what containers get there, and what those are
//! told that get nothing.
#![allow(clippy::unwrap_used, reason = "helpers of tests")]

use std::fs;
use std::os::unix::fs::symlink;
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};
use std::time::Duration;

use integration::{PROBE_ALL, QuiltOptions, Result, Seen, Site, Spec};

use crate::Bench;

fn put(path: PathBuf, content: &str) {
    fs::create_dir_all(path.parent().unwrap()).unwrap();
    fs::write(path, content).unwrap();
}

/// A node with so many GPUs, and further lines of `[policy]`.
fn bench(test: &str, gpus: u64, policy: &str) -> Result<Option<Bench>> {
    let Some(bench) = Bench::on(test, || Site::with(|host| host.gpus(gpus), &QuiltOptions::default()))? else {
        return Ok(None);
    };
    let config = bench.site.quilt.config();
    let text = fs::read_to_string(&config).unwrap();
    fs::write(config, text.replacen("[policy]\n", &format!("[policy]\n{policy}\n"), 1)).unwrap();
    Ok(Some(bench))
}

fn asking(count: &str) -> Spec {
    Spec::new().env("QUILT_GPU_COUNT", count)
}

#[test]
fn manifests_come_with_graphics_firmware_and_sockets_by_policy() -> Result<()> {
    let test = "manifests_come_with_graphics_firmware_and_sockets_by_policy";
    let (manifest, socket) = ("/usr/share/vulkan/icd.d/nvidia_icd.json", "/run/nvidia-persistenced/socket");
    for (policy, capabilities, expected) in [
        ("", "compute,utility", [false, false, false]),
        ("", "graphics", [true, false, false]),
        ("firmware = true\nsockets = ['persistenced']", "compute,utility", [false, true, true]),
    ] {
        let policy = format!("capabilities = 'compute,utility,graphics'\n{policy}");
        let Some(bench) = bench(test, 1, &policy)? else { return Ok(()) };
        let root = &bench.site.host.root;
        let firmware = format!("/lib/firmware/nvidia/{}/gsp_ga10x.bin", bench.site.files.version);
        put(root.join(&manifest[1..]), r#"{"ICD": {"library_path": "libGLX_nvidia.so.0"}}"#);
        put(root.join(&firmware[1..]), "firmware");
        fs::create_dir_all(root.join("run/nvidia-persistenced")).unwrap();
        let _listens = UnixListener::bind(root.join(&socket[1..])).unwrap();
        let seen = bench.see("files", &asking("1").env("QUILT_GPU_CAPABILITIES", capabilities))?;
        let found = [manifest, &firmware, socket].map(|path| {
            // A merged /usr gives one folder two names.
            let mount = seen.mount(path).or_else(|| seen.mount(&format!("/usr{path}")));
            assert!(mount.is_none_or(|mount| mount["options"].as_str().unwrap().starts_with("ro")), "{mount:?}");
            mount.is_some()
        });
        assert_eq!(found, expected, "{policy:?} {capabilities}");
    }
    Ok(())
}

/// D03: on NixOS a manifest names its library by an absolute path, which is true in the container then.
#[test]
fn d03_an_absolute_path_of_a_manifest_leads_somewhere_in_the_container() -> Result<()> {
    let test = "d03_an_absolute_path_of_a_manifest_leads_somewhere_in_the_container";
    let Some(bench) = bench(test, 1, "capabilities = 'compute,utility,graphics'")? else { return Ok(()) };
    let root = &bench.site.host.root;
    let named = "/run/opengl-driver/lib/libGLX_nvidia.so.0";
    let library = root.join(bench.site.host.layout.library_folder()).join("libGLX_nvidia.so.0");
    let library = fs::canonicalize(library).unwrap();
    fs::create_dir_all(root.join("run/opengl-driver/lib")).unwrap();
    let inside = Path::new("/").join(library.strip_prefix(root).unwrap());
    symlink(inside, root.join(&named[1..])).unwrap();
    let manifest = "/usr/share/vulkan/icd.d/nvidia_icd.json";
    put(root.join(&manifest[1..]), &format!("{{\"ICD\": {{\"library_path\": \"{named}\"}}}}"));
    for (capabilities, given) in [("graphics", true), ("compute", false)] {
        let seen = bench.see(capabilities, &asking("1").env("QUILT_GPU_CAPABILITIES", capabilities))?;
        let there = [manifest, named].map(|path| seen.mount(path).is_some());
        assert_eq!(there, [given, given], "{capabilities}");
    }
    Ok(())
}

/// A library as far as anybody looks who wants to know its class and its name.
fn elf32(soname: &str) -> Vec<u8> {
    let strings = format!("\0{soname}\0");
    let (dynamic, length) = (52 + 2 * 32, strings.len() as u32);
    let at = dynamic + 4 * 8;
    let mut bytes = b"\x7fELF\x01\x01\x01\0\0\0\0\0\0\0\0\0\x03\0\x03\0\x01\0\0\0".to_vec();
    let header = [0, 52, 0, 0, 32 << 16 | 52, 2, 0];
    let segments = [[1, 0, 0, 0, at + length, at + length, 4, 4], [2, dynamic, dynamic, dynamic, 32, 32, 4, 4]];
    let entries = [5, at, 10, length, 14, 1, 0, 0];
    let words = header.iter().chain(segments.iter().flatten()).chain(&entries);
    bytes.extend(words.flat_map(|word: &u32| word.to_le_bytes()));
    bytes.extend(strings.bytes());
    bytes
}

/// D10: what is 32-bit by its class, in whatever folder that no cache lists, goes where the image's 32-bit loader looks, for
/// those who ask for it.
#[test]
fn d10_32_bit_libraries_go_to_the_32_bit_loader_alone() -> Result<()> {
    let test = "d10_32_bit_libraries_go_to_the_32_bit_loader_alone";
    let Some(bench) = bench(test, 1, "capabilities = 'compute,utility,graphics,compat32'")? else { return Ok(()) };
    let narrow = format!("usr/lib32/libGLX_nvidia.so.{}", bench.site.files.version);
    put(bench.site.host.root.join(&narrow), "");
    fs::write(bench.site.host.root.join(&narrow), elf32("libGLX_nvidia.so.0")).unwrap();
    bench.site.quilt.cli(&["inventory", "refresh"])?.checked()?;
    for (capabilities, expected) in [("graphics,compat32", [true, true]), ("graphics", [true, false])] {
        let spec = asking("1").env("QUILT_GPU_CAPABILITIES", capabilities).args(PROBE_ALL);
        let bundle = bench.bundle(capabilities, &spec)?;
        let loader = "\x7fELF\0/lib/i386-linux-gnu/\0/usr/lib/i386-linux-gnu/\0/lib/\0/usr/lib/\0\0\0\0\0";
        put(bundle.path.join("rootfs/lib/ld-linux.so.2"), loader);
        fs::create_dir_all(bundle.path.join("rootfs/usr/lib/i386-linux-gnu")).unwrap();
        let seen = Seen::of(&bench.runc.whole_life(&capabilities.replace(',', "-"), &bundle)?)?;
        let there = ["x86_64", "i386"].map(|machine| {
            let at = format!("/lib/{machine}-linux-gnu/libGLX_nvidia.so.0");
            seen.mount(&at).or_else(|| seen.mount(&format!("/usr{at}"))).is_some()
        });
        assert_eq!(there, expected, "{capabilities}");
        let stray = ["/usr/lib/libGLX_nvidia.so.0", "/lib/libGLX_nvidia.so.0", "/usr/lib32/libGLX_nvidia.so.0"];
        assert!(stray.iter().all(|path| seen.mount(path).is_none()), "{capabilities}");
    }
    Ok(())
}

/// G6: EGL and Vulkan are told of the granted GPUs alone, by their minors, and programs without them of nothing. A volume's
/// profiles stay the tenant's, and nothing stays in the bundle.
#[test]
fn egl_and_vulkan_see_granted_gpus() -> Result<()> {
    let place = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf";
    let draws = |gpus: &str| Spec::new().env("QUILT_GPU_IDS", gpus).env("QUILT_GPU_CAPABILITIES", "graphics");
    let profile =
        |mask: u8| format!("{{\"rules\":[{{\"pattern\":[],\"profile\":[\"EGLVisibleDGPUDevices\",{mask}]}}]}}\n");
    for (policy, shows) in [("", false), ("\nshow_other_gpus = true", true)] {
        let policy = format!("capabilities = 'compute,utility,graphics'{policy}");
        let Some(bench) = bench("egl_and_vulkan_see_granted_gpus", 3, &policy)? else { return Ok(()) };
        let volume = bench.site.join("volume");
        fs::create_dir(&volume).unwrap();
        for (id, spec, told) in [
            ("first", draws("nvidia0"), Some(profile(1))),
            ("two", draws("nvidia1,nvidia2"), Some(profile(6))),
            ("read-only", draws("nvidia2").edit(|spec| spec["root"]["readonly"] = true.into()), Some(profile(4))),
            ("volume", draws("nvidia0").bind(&volume, "/etc/nvidia", &[]), None),
            ("computes", asking("1"), None),
        ] {
            let bundle = bench.bundle(id, &spec.args(["sh", "-c", &format!("cat {place} || true")]))?;
            let said = bench.runc.whole_life(id, &bundle)?;
            assert_eq!(said, told.filter(|_| !shows).unwrap_or_default(), "{id}, {policy}");
            let left = bundle.path.join("quilt-gpu.application-profile.json");
            assert!(!left.exists() && fs::read_dir(&volume).unwrap().next().is_none(), "{id}: left behind");
        }
    }
    Ok(())
}

/// A `run` has hooks that judge and verify: what we put there ourselves is no tenant's, in the strict profile too.
#[test]
fn run_keeps_what_policy_gives() -> Result<()> {
    let Some(bench) = bench("run_keeps_what_policy_gives", 1, "profile = 'hardened'\nsockets = ['persistenced']")?
    else {
        return Ok(());
    };
    let root = &bench.site.host.root;
    fs::create_dir_all(root.join("run/nvidia-persistenced")).unwrap();
    let _listens = UnixListener::bind(root.join("run/nvidia-persistenced/socket")).unwrap();
    // The strict profile takes the right to make nodes, and with it the probe's way to try numbers.
    let bundle = bench.bundle("run", &asking("1").args(PROBE_ALL))?;
    let seen = Seen::of(&bench.runc.run("run", &bundle)?.checked()?.stdout)?;
    assert!(seen.mount("/run/nvidia-persistenced/socket").is_some());
    assert_eq!(seen.gpus_by_node()?.len(), 1);
    Ok(())
}

/// One lost, one for a virtual machine: neither is granted, both are named, the third is as good as ever.
#[test]
fn gpus_that_are_not_ready_are_named_and_the_others_serve() -> Result<()> {
    let Some(bench) = bench("gpus_that_are_not_ready_are_named_and_the_others_serve", 3, "")? else { return Ok(()) };
    let host = &bench.site.host;
    let [lost, machine, good] = host.gpus.as_slice() else { panic!("{:?}", host.gpus) };
    fs::remove_dir_all(host.root.join("proc/driver/nvidia/gpus").join(&lost.pci)).unwrap();
    fs::remove_dir_all(host.root.join("proc/driver/nvidia/gpus").join(&machine.pci)).unwrap();
    let driver = host.root.join("sys/bus/pci/devices").join(&machine.pci).join("driver");
    fs::remove_file(&driver).unwrap();
    symlink("../../../bus/pci/drivers/vfio-pci", driver).unwrap();

    let words = "2 GPUs asked, 3 present, 1 free: 1 lost, 1 bound to vfio-pci";
    bench.refused("two", &bench.bundle("two", &asking("2"))?, &["GPU_UNAVAILABLE", words])?;
    for (id, gpu, words) in [("lost", lost, "does not list"), ("machine", machine, "for a virtual machine")] {
        let bundle = bench.bundle(id, &Spec::new().env("QUILT_GPU_IDS", &gpu.pci))?;
        bench.refused(id, &bundle, &["GPU_UNAVAILABLE", words])?;
    }
    assert_eq!(bench.sleeper("good", &asking("1"))?.gpus()?, [good.minor].into());
    let words = "1 GPU asked, 3 present, 0 free: 1 lost, 1 bound to vfio-pci, 1 taken";
    bench.refused("one", &bench.bundle("one", &asking("1"))?, &["CAPACITY_FULL", words])?;
    Ok(())
}

/// D14, D19: a driver without its nodes is said to be so; where policy has the helper make them, the container just starts.
#[test]
fn missing_nodes_are_named_or_made() -> Result<()> {
    for (policy, made) in [("", false), ("make_nodes = true", true)] {
        let Some(bench) = bench("missing_nodes_are_named_or_made", 1, policy)? else { return Ok(()) };
        let host = &bench.site.host;
        let name = host.gpus[0].name();
        let node = |name: &str| host.root.join("dev").join(name);
        for name in [&name, "nvidia-uvm"] {
            fs::remove_file(node(name)).unwrap();
        }
        if made {
            assert_eq!(bench.see("made", &asking("1"))?.gpus()?.len(), 1);
            assert!(node(&name).exists() && host.root.join("dev/char/511:0").exists());
            // Gone once more, while the inventory that is stored has it.
            fs::remove_file(node(&name)).unwrap();
            assert_eq!(bench.see("again", &asking("1"))?.gpus()?.len(), 1);
            continue;
        }
        let command = format!("nvidia-modprobe -c {}", host.gpus[0].minor);
        let by_id = bench.bundle("by-id", &Spec::new().env("QUILT_GPU_IDS", &name))?;
        bench.refused("by-id", &by_id, &["DRIVER_NOT_READY", &command])?;
        let by_count = bench.bundle("by-count", &asking("1"))?;
        bench.refused("by-count", &by_count, &["DRIVER_NOT_READY", "0 free: 1 without a device node"])?;
        assert!(!node(&name).exists());
    }
    Ok(())
}

/// Somebody who asked nobody has a GPU open: it is not granted until that ends, and then without another word.
#[test]
fn a_gpu_in_use_outside_leases_is_left_alone_until_it_is_free() -> Result<()> {
    let Some(bench) = bench("a_gpu_in_use_outside_leases_is_left_alone_until_it_is_free", 1, "")? else {
        return Ok(());
    };
    let host = &bench.site.host;
    let process = host.root.join("proc/4711");
    put(process.join("comm"), "python3\n");
    fs::create_dir_all(process.join("fd")).unwrap();
    symlink(host.node(&host.gpus[0].name()), process.join("fd/5")).unwrap();
    let bundle = bench.bundle("busy", &asking("1"))?;
    bench.refused("busy", &bundle, &["GPU_UNAVAILABLE", "1 in use outside any lease"])?;
    fs::remove_dir_all(&process).unwrap();
    // Nobody looks again and again: a look in vain has a rest behind it.
    let mut answer = bench.runc.create("free", &bundle)?;
    for _ in 0..60 {
        if answer.status.success() {
            break;
        }
        std::thread::sleep(Duration::from_millis(500));
        answer = bench.runc.create("free", &bundle)?;
    }
    answer.checked()?;
    Ok(())
}

/// D43: no GPU of it is granted by halves, and who wants none does not notice.
#[test]
fn a_machine_that_is_not_supported_is_named() -> Result<()> {
    let Some(bench) = bench("a_machine_that_is_not_supported_is_named", 1, "")? else { return Ok(()) };
    put(bench.site.host.root.join("etc/nv_tegra_release"), "# R36");
    let bundle = bench.bundle("asking", &asking("1"))?;
    bench.refused("asking", &bundle, &["DRIVER_NOT_READY", "Tegra", "not supported"])?;
    assert!(bench.see("plain", &Spec::new())?.gpus()?.is_empty());
    assert!(Path::new(&bench.site.quilt.state()).exists());
    Ok(())
}
