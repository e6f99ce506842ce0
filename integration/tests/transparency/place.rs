//! Calls made from a state, by the stub's own name and through the runtime, and what differs between both.

use std::fs;
use std::os::unix::process::ExitStatusExt;
use std::path::{Path, PathBuf};
use std::process::{Command, ExitStatus, Stdio};
use std::time::{Duration, Instant};

use integration::{Binaries, Bundle, Error, QuiltOptions, Result, Rootfs, Site, Spec, run};
use serde_json::{Map, Value};

use crate::state::Random;

const STUB: &str = env!("CARGO_BIN_EXE_quilt-stub");
const LAUNCH: &str = env!("CARGO_BIN_EXE_quilt-launch");
const LIMIT: Duration = Duration::from_secs(60);
const ID: &str = "it";

/// What is called. `Gpu`: about a container that has, or gets, one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Case {
    Pass,
    Create,
    CreateVoid,
    CreateGpu,
    Run,
    RunGpu,
    Exec,
    ExecGpu,
    Update,
    Delete,
    DeleteGpu,
}

impl Case {
    pub(crate) const ALL: [Self; 11] = [
        Self::Pass,
        Self::CreateGpu,
        Self::Create,
        Self::DeleteGpu,
        Self::CreateVoid,
        Self::ExecGpu,
        Self::Run,
        Self::Delete,
        Self::RunGpu,
        Self::Exec,
        Self::Update,
    ];

    fn bundle(self) -> &'static str {
        match self {
            Self::CreateVoid => "void",
            Self::CreateGpu | Self::RunGpu | Self::ExecGpu | Self::DeleteGpu => "gpu",
            _ => "plain",
        }
    }

    /// The runtime stays, as it has something to do when the low-level runtime has ended.
    fn waits(self) -> bool {
        matches!(self, Self::CreateGpu | Self::DeleteGpu)
    }
}

/// A call, whoever gets it.
pub(crate) struct Call {
    case: Case,
    words: Vec<Vec<u8>>,
    env: Vec<Vec<u8>>,
    /// How many descriptors the container is to have.
    preserved: u64,
}

/// What came of a call.
#[derive(Clone)]
struct Came {
    launched: u32,
    end: ExitStatus,
    output: [Vec<u8>; 2],
    report: Value,
}

pub(crate) struct Place {
    site: Site,
    runtime: PathBuf,
}

impl Place {
    pub(crate) fn new() -> Result<Self> {
        let options = QuiltOptions { verify: false, low_level: vec![STUB.into()], ..QuiltOptions::default() };
        let site = Site::with(|host| host.gpus(1), &options)?;
        let rootfs = Rootfs { path: site.join("rootfs") };
        fs::create_dir_all(&rootfs.path).unwrap();
        fs::create_dir_all(site.join("root")).unwrap();
        fs::create_dir_all(site.join("cwd")).unwrap();
        let asks = Spec::new().env("QUILT_GPU_COUNT", "1");
        for (name, spec) in
            [("plain", Spec::new()), ("void", Spec::new().env("NVIDIA_VISIBLE_DEVICES", "all")), ("gpu", asks)]
        {
            Bundle::sharing(site.join(name), &spec, &rootfs)?;
        }
        fs::write(site.join("process.json"), r#"{"args":["true"],"cwd":"/","env":["A=b"]}"#).unwrap();
        Ok(Self { site, runtime: Binaries::locate()?.runtime })
    }

    fn path(&self, name: &str) -> String {
        self.site.join(name).display().to_string()
    }

    /// A call with random words and environment.
    pub(crate) fn call(&self, case: Case, random: &mut Random) -> Result<Call> {
        let mut call = Call { case, words: Vec::new(), env: Vec::new(), preserved: 0 };
        let mut say = |words: &[&str]| call.words.extend(words.iter().map(|word| word.as_bytes().to_vec()));
        say(&[random.of(&["runc", "/usr/bin/other", ""])]);
        say(&["--root", &self.path("root")]);
        if random.one_in(2) {
            say(&["--log", &self.path("log.json"), "--log-format", "json"]);
        }
        let bundle = self.path(case.bundle());
        match case {
            Case::Pass => say(&[random.of(&["state", "start", "kill", "pause", "list", "events", "invented"]), ID]),
            Case::Create | Case::CreateVoid | Case::CreateGpu => say(&["create", "--bundle", &bundle]),
            Case::Run | Case::RunGpu => say(&["run", "-b", &bundle]),
            Case::Exec | Case::ExecGpu => say(&["exec"]),
            Case::Update => say(&["update", "--memory", "1"]),
            Case::Delete | Case::DeleteGpu => say(&["delete", "--force"]),
        }
        let makes = ["create", "run", "exec"].iter().any(|verb| call.words.contains(&verb.as_bytes().to_vec()));
        let mut say = |words: &[&str]| call.words.extend(words.iter().map(|word| word.as_bytes().to_vec()));
        if makes {
            if random.one_in(2) {
                say(&["--pid-file", &self.path("pid")]);
            }
            if random.one_in(2) {
                call.preserved = random.below(4);
                say(&["--preserve-fds", &call.preserved.to_string()]);
            }
            if random.one_in(3) {
                say(&["--console-socket", &self.path("console.sock")]);
            }
            if random.one_in(2) && matches!(case, Case::Exec | Case::ExecGpu) {
                say(&["--process", &self.path("process.json")]);
            }
        }
        match case {
            Case::Pass => call.words.extend((0..random.below(4)).map(|_| random.bytes())),
            Case::Exec | Case::ExecGpu => {
                say(&[ID]);
                call.words.extend((0..=random.below(3)).map(|_| random.bytes()));
            }
            _ => say(&[ID]),
        }
        call.env = self.env(random);
        Ok(call)
    }

    fn env(&self, random: &mut Random) -> Vec<Vec<u8>> {
        let (key, value) = self.site.quilt.env();
        let mut env: Vec<String> = vec![
            "PATH=/usr/sbin:/usr/bin:/sbin:/bin".to_owned(),
            format!("{key}={}", value.display()),
            format!("QUILT_STUB_REPORT={}", self.path("report")),
        ];
        if random.one_in(2) {
            env.push(format!("QUILT_STUB_OUTPUT=said {}", random.next()));
        }
        match random.below(4) {
            0 => env.push(format!("QUILT_STUB_STATUS={}", random.below(256))),
            1 => env.push(format!("QUILT_STUB_SIGNAL={}", random.of(&[1, 2, 6, 9, 11, 13, 15, 31, 34, 64]))),
            _ => {}
        }
        if random.one_in(2) {
            env.push(random.of(&["LISTEN_PID=$$", "LISTEN_PID=1", "LISTEN_PID="]).to_owned());
            env.push(format!("LISTEN_FDS={}", random.below(3)));
        }
        let mut env: Vec<Vec<u8>> = env.into_iter().map(String::into_bytes).collect();
        for _ in 0..random.below(4) {
            let at = random.below(env.len() as u64 + 1) as usize;
            let odd = random.of(&[
                &b"LD_LIBRARY_PATH=/opt/x:"[..],
                b"GLIBC_TUNABLES=a=b",
                b"A=1",
                b"A=2",
                b"none",
                b"=",
                b"",
            ]);
            env.insert(at, odd.to_vec());
        }
        env.push([b"ANY=".to_vec(), random.bytes()].concat());
        env
    }

    /// What differs between the call without us and through us.
    pub(crate) fn compare(&self, call: &Call, state: &Value) -> Result<Option<String>> {
        self.prepare(call, false)?;
        let directly = self.made(Path::new(STUB), call, state)?;
        self.prepare(call, true)?;
        let through = self.made(&self.runtime, call, state)?;
        self.clean()?;
        Ok(difference(&seen(directly), &seen(expected(through, call, state))))
    }

    /// What differs between two starts without us.
    pub(crate) fn differ(&self, call: &Call, one: &Value, other: &Value) -> Result<Option<String>> {
        let mut both = Vec::new();
        for state in [one, other] {
            both.push(seen(self.made(Path::new(STUB), call, state)?));
        }
        Ok(difference(&both[0], &both[1]))
    }

    /// The container that the call is about, with its lease or without.
    fn prepare(&self, call: &Call, ours: bool) -> Result<()> {
        let is_there = matches!(call.case, Case::Exec | Case::ExecGpu | Case::Update | Case::Delete | Case::DeleteGpu);
        if is_there && ours {
            let bundle = self.path(call.case.bundle());
            return self.ours(&["create", "--bundle", &bundle, ID]);
        }
        let _ = fs::remove_dir(self.site.join("root").join(ID));
        if is_there {
            fs::create_dir(self.site.join("root").join(ID)).unwrap();
        }
        Ok(())
    }

    fn clean(&self) -> Result<()> {
        self.ours(&["delete", "--force", ID])
    }

    fn ours(&self, words: &[&str]) -> Result<()> {
        let _ = fs::remove_dir(self.site.join("root").join(ID)).is_ok();
        let mut command = Command::new(&self.runtime);
        command.arg("--root").arg(self.path("root")).args(words).envs([self.site.quilt.env()]);
        run(&mut command, None, LIMIT)?.checked().map(|_| ())
    }

    /// Makes a call, from a state.
    fn made(&self, program: &Path, call: &Call, state: &Value) -> Result<Came> {
        let (out, err, report) = (self.site.join("out"), self.site.join("err"), self.site.join("report"));
        let _ = fs::remove_file(&report);
        let mut state = state.clone();
        if state["cwd"] == "" {
            state["cwd"] = self.path("cwd").into();
        }
        state["program"] = program.to_str().unwrap().into();
        state["words"] = call.words.iter().cloned().collect();
        state["env"] = call.env.iter().cloned().collect();
        let file = self.site.join("state.json");
        fs::write(&file, state.to_string()).unwrap();
        let mut command = Command::new(LAUNCH);
        command.arg(&file).env_clear().current_dir(self.site.join("cwd")).stdin(Stdio::null());
        command.stdout(fs::File::create(&out).unwrap()).stderr(fs::File::create(&err).unwrap());
        let mut child = command.spawn().unwrap();
        let deadline = Instant::now() + LIMIT;
        let end = loop {
            if let Some(end) = child.try_wait().unwrap() {
                break end;
            }
            if Instant::now() > deadline {
                let _ = child.kill();
                let _ = child.wait();
                return Err(Error::new(format!("{} has no end: {state}", program.display())));
            }
            std::thread::sleep(Duration::from_micros(500));
        };
        let output = [fs::read(out).unwrap(), fs::read(err).unwrap()];
        let lines = fs::read_to_string(&report).unwrap_or_default();
        let [line] = lines.lines().collect::<Vec<_>>()[..] else {
            let err = String::from_utf8_lossy(&output[1]).into_owned();
            return Err(Error::new(format!("{lines:?} of {}, {end}: {err}; {state}", program.display())));
        };
        Ok(Came { launched: child.id(), end, output, report: serde_json::from_str(line).unwrap() })
    }
}

/// What came through us, without what we mean to be different, and only if it is.
fn expected(mut came: Came, call: &Call, state: &Value) -> Came {
    if call.case.waits() && came.report["numbers"]["parent"] == came.launched && came.report["pid"] != came.launched {
        // It dies with us, whatever was to become of us.
        if came.report["numbers"]["death_signal"] == 9 {
            came.report["numbers"]["death_signal"] = state["death_signal"].clone();
        }
        came.report["numbers"]["parent"] = std::process::id().into();
    }
    let mut argv: Vec<String> =
        came.report["argv"].as_array().into_iter().flatten().filter_map(|word| word.as_str().map(Into::into)).collect();
    let given = |word: &str| call.words.iter().any(|known| known == word.as_bytes());
    if call.case == Case::CreateGpu
        && !given("--pid-file")
        && let Some(at) = argv.iter().position(|word| word == "--pid-file")
    {
        argv.drain(at..at + 2);
    }
    if call.case == Case::ExecGpu
        && let Some(word) = argv.iter_mut().find(|word| word.starts_with("/proc/self/fd/"))
    {
        // The process, with the contract's variables: behind whatever is the container's or the runtime's own.
        let fd = word.rsplit('/').next().unwrap_or_default().to_owned();
        let is_behind = fd.parse::<u64>().is_ok_and(|fd| fd >= 3 + call.preserved);
        let process = call.words.iter().position(|word| word == b"--process").and_then(|at| call.words.get(at + 1));
        if let (true, Some(process)) = (is_behind, process) {
            *word = process.escape_ascii().to_string();
            came.report["fds"].as_object_mut().unwrap().remove(&fd);
        }
    }
    came.report["argv"] = argv.into();
    came
}

/// A report in which numbers that differ from start to start are words; how it ended, and what was written.
fn seen(came: Came) -> Map<String, Value> {
    let Came { launched, end, output, mut report } = came;
    let own = report["pid"].take();
    for key in ["parent", "group", "session"] {
        let number = &mut report["numbers"][key];
        if *number == launched {
            *number = "the launched".into();
        }
    }
    for variable in report["env"].as_array_mut().into_iter().flatten() {
        if variable.as_str() == Some(&format!("LISTEN_PID={own}")) {
            *variable = "LISTEN_PID=its own".into();
        }
    }
    // Pipes and sockets by the order in which they are met.
    let mut met: Vec<String> = Vec::new();
    let mut fds: Vec<(u64, Value)> = report["fds"]
        .as_object()
        .into_iter()
        .flatten()
        .map(|(fd, facts)| (fd.parse().unwrap(), facts.clone()))
        .collect();
    fds.sort_by_key(|(fd, _)| *fd);
    for (_, facts) in &mut fds {
        let target = facts[0].as_str().unwrap_or_default().to_owned();
        if let Some((kind, _)) = target.split_once(":[").filter(|(kind, _)| ["pipe", "socket"].contains(kind)) {
            let at = met.iter().position(|known| *known == target).unwrap_or(met.len());
            facts[0] = format!("{kind} {at}").into();
            met.push(target);
        }
    }
    report["fds"] = fds.into_iter().map(|(fd, facts)| (fd.to_string(), facts)).collect::<Map<_, _>>().into();
    let mut seen = report.as_object().cloned().unwrap_or_default();
    seen.insert(
        "end".into(),
        end.signal().map_or_else(|| end.code().into(), |signal| format!("by signal {signal}").into()),
    );
    seen.insert("output".into(), output.map(|bytes| bytes.escape_ascii().to_string()).to_vec().into());
    seen
}

/// The parts that differ.
fn difference(one: &Map<String, Value>, other: &Map<String, Value>) -> Option<String> {
    let keys = one.keys().chain(other.keys().filter(|key| !one.contains_key(*key)));
    let parts: Vec<String> = keys
        .filter(|key| one.get(*key) != other.get(*key))
        .map(|key| {
            format!("{key}: {} became {}", one.get(key).unwrap_or(&Value::Null), other.get(key).unwrap_or(&Value::Null))
        })
        .collect();
    (!parts.is_empty()).then(|| parts.join("; "))
}
