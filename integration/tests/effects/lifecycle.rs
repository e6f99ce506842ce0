//! Section H: the command line, and what comes after create.

use std::fs;
use std::path::Path;

use integration::{Bundle, Error, Ran, Result, Spec};
use serde_json::json;

use crate::case::{Bare, Case, Verdict, bind, case, without};
use crate::life::{Outcome, Run, not_made};
use crate::mounts::ESCAPE;
use crate::world::Place;

const MOUNT: &str = "TENANT_GPU_MOUNT";
const UNSAFE: &str = "UNSAFE_SPEC";

pub(crate) fn cases() -> Vec<Case> {
    [starts(), spellings(), added(), updated(), elsewhere()].into_iter().flatten().collect()
}

fn text(path: &Path) -> String {
    path.to_string_lossy().into_owned()
}

/// A bundle beside this one, without what the case is about.
fn harmless(run: &Run<'_>, bundle: &Bundle) -> Result<Bundle> {
    let mut spec = bundle.read()?;
    if let Some(mounts) = spec["mounts"].as_array_mut() {
        mounts.retain(|mount| mount["destination"] != "/x");
    }
    let path = run.trap.with_extension("harmless");
    let made = fs::create_dir_all(&path).and_then(|()| fs::write(path.join("config.json"), spec.to_string()));
    made.map(|()| Bundle { path }).map_err(|e| Error::new(e.to_string()))
}

/// `create` in these words, H for the harmless bundle, E for the other; then its life.
fn created_by(run: &Run<'_>, bundle: &Bundle, words: &[&str]) -> Result<Outcome> {
    let harmless = harmless(run, bundle)?;
    let pid = text(&bundle.path.join("init.pid"));
    let words: Vec<String> = words
        .iter()
        .map(|word| word.replace("HARMLESS", &text(&harmless.path)).replace("EVIL", &text(&bundle.path)))
        .map(|word| word.replace("PIDFILE", &pid).replace("ID", &run.id))
        .collect();
    let words: Vec<&str> = words.iter().map(String::as_str).collect();
    let out = text(&bundle.path.join("stdout"));
    // The container keeps what `create` had for output.
    let mut command = run.runc().command(&run.id);
    let shell = format!("exec \"$@\" >'{out}' 2>'{out}.err' </dev/null");
    let mut whole = std::process::Command::new("sh");
    whole.args(["-c", &shell, "sh"]).arg(command.get_program()).args(command.get_args()).args(words);
    whole.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
    command = whole;
    let status = command.status().map_err(|e| Error::new(e.to_string()))?;
    if !status.success() {
        let said = fs::read_to_string(format!("{out}.err")).unwrap_or_default();
        let refused = said.contains("quilt-gpu: ");
        return Ok(if refused { Outcome::Refused(said) } else { Outcome::Failed(said) });
    }
    run.lives(bundle)
}

fn starts() -> Vec<Case> {
    vec![
        case("H1 Q65", "run instead of create, with a node", |run| bind(run.node("nvidia0")))
            .drive(|run, bundle| run.of(&run.runc().run(&run.id, bundle)?))
            .brings_a_node()
            .refused(MOUNT, "mount-gpu-node"),
        case("H1 Q65", "run instead of create", |_| Spec::new())
            .drive(|run, bundle| run.of(&run.runc().run(&run.id, bundle)?)),
        case("H4", "a document that is a link", |run| bind(run.node("nvidia0")))
            .drive(|run, bundle| {
                let (config, real) = (bundle.config(), bundle.path.join("real.json"));
                let moved = fs::rename(&config, &real).and_then(|()| std::os::unix::fs::symlink("real.json", &config));
                moved.map_err(|e| Error::new(e.to_string()))?;
                run.live(bundle)
            })
            .brings_a_node()
            .refused(UNSAFE, "bundle-link"),
        case("H9 Q65", "no change of root", |_| Spec::new())
            .drive(|run, bundle| {
                created_by(run, bundle, &["create", "--no-pivot", "-b", "EVIL", "--pid-file", "PIDFILE", "ID"])
            })
            .hardened(Verdict::Refused(UNSAFE, "args-no-pivot")),
        case("H10 Q65", "an id that climbs", |_| Spec::new())
            .drive(|run, bundle| created_by(run, bundle, &["create", "-b", "EVIL", "--pid-file", "PIDFILE", "../ID"]))
            .bare(Bare::Fails)
            .always(Verdict::Refused(UNSAFE, ""))
            .standard(Verdict::Fails)
            .asking(Verdict::Refused(UNSAFE, "")),
        case("H2 CVE-2026-53492", "a checkpoint", |_| Spec::new())
            .drive(|run, bundle| {
                let (folder, image) = (text(&bundle.path), text(&run.trap.with_extension("image")));
                let words = ["restore", "--bundle", &folder, "--image-path", &image, &run.id];
                Ok(not_made(&run.runc().call(&run.id, &words)?))
            })
            .bare(Bare::Fails)
            .always(Verdict::Fails)
            .asking(Verdict::Refused("POLICY", "restore")),
    ]
}

/// The same call in other words.
fn spellings() -> Vec<Case> {
    let spelt = |what, words: &'static [&'static str], bare, verdict: Verdict| {
        case("H3 Q65", what, |run| bind(run.node("nvidia0")))
            .drive(move |run, bundle| created_by(run, bundle, words))
            .brings_a_node()
            .bare(bare)
            .always(verdict)
    };
    let refused = Verdict::Refused(MOUNT, "mount-gpu-node");
    let ambiguous = Verdict::Refused(UNSAFE, "");
    vec![
        spelt(
            "two bundles, the second the evil one",
            &["create", "--bundle", "HARMLESS", "--bundle", "EVIL", "--pid-file", "PIDFILE", "ID"],
            Bare::Exposes,
            ambiguous,
        ),
        spelt(
            "two bundles, the first the evil one",
            &["create", "--bundle", "EVIL", "--bundle", "HARMLESS", "--pid-file", "PIDFILE", "ID"],
            Bare::Closed,
            ambiguous,
        ),
        spelt("the bundle in one word", &["create", "-b=EVIL", "--pid-file=PIDFILE", "ID"], Bare::Exposes, ambiguous),
        spelt(
            "the bundle behind one dash",
            &["create", "-bundle=EVIL", "--pid-file", "PIDFILE", "ID"],
            Bare::Exposes,
            ambiguous,
        ),
        spelt(
            "the bundle by its letter",
            &["create", "-b", "EVIL", "--pid-file", "PIDFILE", "ID"],
            Bare::Exposes,
            refused,
        ),
        spelt(
            "the end of flags",
            &["create", "-b", "EVIL", "--pid-file", "PIDFILE", "--", "ID"],
            Bare::Exposes,
            ambiguous,
        ),
        spelt(
            "flags before the verb",
            &["--systemd-cgroup=false", "create", "-b", "EVIL", "--pid-file", "PIDFILE", "ID"],
            Bare::Exposes,
            ambiguous,
        ),
    ]
}

/// A container that waits, then something done to it, then what a process in it can open.
fn meanwhile(run: &Run<'_>, bundle: &Bundle, act: impl Fn() -> Result<Ran>) -> Result<Outcome> {
    let mut spec = bundle.read()?;
    spec["process"]["args"] = json!(["quilt-probe", "sleep"]);
    fs::write(bundle.config(), spec.to_string()).map_err(|e| Error::new(e.to_string()))?;
    let created = run.runc().create(&run.id, bundle)?;
    if !created.ok() {
        return Ok(not_made(&created));
    }
    run.runc().start(&run.id)?.checked()?;
    let acted = act();
    let deleted = run.runc().delete(&run.id, true)?.checked();
    let outcome = acted.and_then(|acted| run.of(&acted));
    deleted?;
    outcome
}

/// Everything that runc knows, as containerd writes it for a privileged exec.
const ALL: [&str; 10] = [
    "CAP_SYS_ADMIN",
    "CAP_MKNOD",
    "CAP_SYS_RAWIO",
    "CAP_SYS_MODULE",
    "CAP_SYS_PTRACE",
    "CAP_DAC_OVERRIDE",
    "CAP_DAC_READ_SEARCH",
    "CAP_NET_ADMIN",
    "CAP_SYS_CHROOT",
    "CAP_SETUID",
];
/// With them: out of its own control group, and the host's nodes.
const UNDO: &str = "mkdir -p /mnt/g; mount -t cgroup -o devices none /mnt/g 2>/dev/null && echo 0 >/mnt/g/cgroup.procs; \
     mount -t devtmpfs none /mnt/d 2>/dev/null && echo LEAK the nodes of the host";

/// runc's `exec` without a process takes that of the container's bundle, which is where an annotation says. `/other` is one
/// whose process may do all.
fn by_another_bundle(what: &'static str, key: &'static str, value: &'static str) -> Case {
    let other = |run: &Run<'_>| run.trap.with_extension("bundle");
    case("E4 H5", what, move |run| {
        let [key, value] = [key, value].map(|part| part.replace("/other", &text(&other(run))));
        Spec::new().annotation(&key, &value)
    })
    .script(UNDO)
    .drive(move |run, bundle| {
        meanwhile(run, bundle, || {
            let mut spec = bundle.read()?;
            spec["process"]["capabilities"] = json!({"bounding": ALL, "effective": ALL, "permitted": ALL});
            for end in ["", "="] {
                let other = format!("{}{end}", text(&other(run)));
                let made =
                    fs::create_dir(&other).and_then(|()| fs::write(format!("{other}/config.json"), spec.to_string()));
                made.map_err(|e| Error::new(e.to_string()))?;
            }
            let command = run.command();
            let words: Vec<&str> = ["exec", &run.id].into_iter().chain(command.iter().map(String::as_str)).collect();
            run.runc().call(&run.id, &words)
        })
    })
    .exposes()
    .refused(UNSAFE, "annotation-low-level")
}

/// Processes that are added.
fn added() -> Vec<Case> {
    vec![
        case("H5 Q66 CVE-2022-29162 CVE-2022-27650", "exec with all capabilities, by a file", |_| Spec::new())
            .script(UNDO)
            .drive(|run, bundle| {
                meanwhile(run, bundle, || {
                    let process = json!({
                        "user": {"uid": 0, "gid": 0}, "args": run.command(), "cwd": "/",
                        "env": ["PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"],
                        "capabilities": {"bounding": ALL, "effective": ALL, "permitted": ALL, "inheritable": ALL},
                    });
                    let file = bundle.path.join("process.json");
                    fs::write(&file, process.to_string()).map_err(|e| Error::new(e.to_string()))?;
                    run.runc().call(&run.id, &["exec", "--process", &text(&file), &run.id])
                })
            })
            .exposes(),
        case("H5 Q66", "exec with capabilities, by flags", |_| Spec::new())
            .script(UNDO)
            .drive(|run, bundle| {
                meanwhile(run, bundle, || {
                    let command = run.command();
                    let mut words = vec!["exec", "--cap", "CAP_SYS_ADMIN", "--cap", "CAP_SYS_RAWIO", &run.id];
                    words.extend(command.iter().map(String::as_str));
                    run.runc().call(&run.id, &words)
                })
            })
            .exposes(),
        by_another_bundle("exec by the bundle that an annotation names", "bundle", "/other"),
        // For runc all of it is `key=value`.
        by_another_bundle("exec by the bundle that an annotation names in its key", "bundle=/other", ""),
        case("H6 CVE-2024-21626", "exec in a folder behind a magic link", |_| Spec::new())
            .drive(|run, bundle| {
                meanwhile(run, bundle, || {
                    let command = run.command();
                    let mut words = vec!["exec", "--cwd", "/proc/self/fd/7", &run.id];
                    words.extend(command.iter().map(String::as_str));
                    run.runc().call(&run.id, &words)
                })
            })
            .bare(Bare::Unasked("mended in the runc of this machine"))
            .refused(UNSAFE, "process-cwd"),
        case("H6", "exec in another control group", |_| Spec::new())
            .script(ESCAPE)
            .drive(|run, bundle| {
                meanwhile(run, bundle, || {
                    let command = run.command();
                    let mut words = vec!["exec", "--cgroup", "../..", &run.id];
                    words.extend(command.iter().map(String::as_str));
                    run.runc().call(&run.id, &words)
                })
            })
            .bare(Bare::Unasked("it may move to a group of the machine's"))
            .refused(UNSAFE, "exec-cgroup"),
    ]
}

fn updated() -> Vec<Case> {
    vec![
        case("H7 Q66", "an update with a list of devices", |_| Spec::new())
            .drive(|run, bundle| {
                meanwhile(run, bundle, || {
                    let list =
                        json!({"devices": [{"allow": true, "access": "rwm"}], "memory": {"limit": 1_073_741_824}});
                    let file = bundle.path.join("resources.json");
                    fs::write(&file, list.to_string()).map_err(|e| Error::new(e.to_string()))?;
                    run.runc().call(&run.id, &["update", "--resources", &text(&file), &run.id])?.checked()?;
                    let command = run.command();
                    let words: Vec<&str> =
                        ["exec", &run.id].into_iter().chain(command.iter().map(String::as_str)).collect();
                    run.runc().call(&run.id, &words)
                })
            })
            .bare(Bare::Closed)
            .on(Place::Crun, Bare::Exposes),
    ]
}

/// What other tests show.
fn elsewhere() -> Vec<Case> {
    vec![
        without("H8", "a handle of a GPU from the caller", "no_open_gpu_is_handed_on"),
        without("H4", "a document or bundle that is swapped once it was read", "another_spec_or_bundle_grants_nothing"),
        without("H4 A6", "a source that is swapped once it was judged", "another_source_grants_nothing"),
        without("Q63", "two creates and one token", "q63_two_creates_and_one_token"),
        without(
            "H11 Q63",
            "many creates for one GPU or token",
            "sixty_four_at_once_over_runc_can_each_open_only_what_they_got",
        ),
        without("H12", "a runtime killed at every call", "killed_at_every_call_over_the_stub"),
        without("H13", "out of scope: only root writes the low-level runtime's state", None),
        without(
            "Q59",
            "a contract that others could have written; not one on a FUSE: only root mounts in our folders, which only root can write",
            "q59_nothing_that_others_could_write_makes_a_contract",
        ),
        without(
            "Q60",
            "a token that was used, is over, or is for another; of another node: its GPUs' addresses and UUIDs, and the boot, are not this one's",
            "q60_no_contract_is_used_again_or_elsewhere",
        ),
        without(
            "Q61",
            "a node that is another GPU than the contract says",
            "q61_q62_a_contract_that_the_node_no_longer_bears_out_is_not_carried_out",
        ),
        without(
            "Q62",
            "a library that is another file than the contract says",
            "q61_q62_a_contract_that_the_node_no_longer_bears_out_is_not_carried_out",
        ),
        without(
            "CVE-2024-0132 CVE-2025-23359",
            "a link of the image's as the source of a mount",
            "cve_2024_0132_and_cve_2025_23359_no_path_of_an_image_is_a_mount_source",
        ),
        without(
            "CVE-2024-0135 CVE-2024-0136 CVE-2024-0137",
            "a program run in the image with the host's rights",
            "cve_2024_0135_to_0137_nothing_of_an_image_is_executed",
        ),
        without(
            "CVE-2025-23267",
            "the linker's own files of the image",
            "cve_2025_23267_the_linkers_files_of_an_image_are_not_followed",
        ),
        without(
            "CVE-2026-24260",
            "an image's tree that changes while a tool walks it: places in an image are handles, each part opened below the last",
            "real_magic_links_in_a_root_are_refused",
        ),
        without(
            "CVE-2026-30892",
            "an exec's user read as another: nothing of it is read here, the words are handed on as they came",
            "exec_in_a_container_without_gpus_is_untouched",
        ),
        without(
            "CVE-2026-53489 CVE-2026-50195",
            "checkpoints in images: nothing here reads one, and none is restored with a GPU",
            "a_container_with_a_gpu_is_not_restored",
        ),
        without("CVE-2021-43816", "labels put on files of the host: nothing here labels anything", None),
        without("Q68", "a low-level runtime that forgets the filter", "a_runtime_that_forgets_the_rules_is_found_out"),
    ]
}
