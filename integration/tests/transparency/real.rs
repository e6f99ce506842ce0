//! The same over runc, for containers with a GPU: what only a container shows. Each call is made to runc, and through
//! us.

use std::fs;
use std::io::{Read, Write};
use std::os::unix::net::UnixListener;
use std::process::Command;
use std::time::Duration;

use integration::{Bundle, Error, Result, Rootfs, Runc, Site, Spec, received, root_for, run, say};

const RUNC: &str = "/usr/sbin/runc";
const LIMIT: Duration = Duration::from_secs(30);

/// runc alone, and through us.
struct Both {
    // First, so that their containers go before the folder they are in.
    runtimes: [(&'static str, Runc); 2],
    site: Site,
    rootfs: Rootfs,
}

impl Both {
    fn new(test: &str) -> Result<Option<Self>> {
        if !root_for(test) {
            return Ok(None);
        }
        let site = Site::new(1)?;
        let runtimes = [("bare", Runc::new(RUNC, site.join("bare"))?), ("ours", site.quilt.runc(site.join("ours"))?)];
        let rootfs = Rootfs::busybox(site.join("rootfs"))?;
        say(format_args!(
            "{test}: {}",
            run(Command::new(RUNC).arg("--version"), None, LIMIT)?.stdout.lines().next().unwrap()
        ));
        Ok(Some(Self { runtimes, site, rootfs }))
    }

    fn bundle(&self, who: &str, spec: &Spec) -> Result<Bundle> {
        let folder = self.site.join("").file_name().unwrap().to_string_lossy().into_owned();
        let spec = spec.clone().env("QUILT_GPU_COUNT", "1").cgroup(&format!("/{folder}-{who}"));
        let path = self.site.join(format!("bundle-{who}"));
        let _ = fs::remove_dir_all(&path);
        Bundle::new(path, &spec, &self.rootfs)
    }

    /// What each of both makes of it, which must be the same.
    fn same<T: PartialEq + std::fmt::Debug>(
        &self,
        what: &str,
        spec: &Spec,
        act: impl Fn(&Runc, &Bundle) -> Result<T>,
    ) -> Result<T> {
        let mut made = Vec::new();
        for (who, runtime) in &self.runtimes {
            let bundle = self.bundle(who, spec)?;
            made.push(act(runtime, &bundle)?);
            runtime.delete("it", true)?.checked()?;
        }
        assert_eq!(made.first(), made.last(), "{what}");
        made.pop().ok_or_else(|| Error::new("nothing was made"))
    }
}

#[test]
fn statuses_of_containers_are_told() -> Result<()> {
    let Some(both) = Both::new("statuses_of_containers_are_told")? else { return Ok(()) };
    for code in [0, 255] {
        let of_run = |runtime: &Runc, bundle: &Bundle| Ok(runtime.run("it", bundle)?.status.code());
        let spec = Spec::new().args(["sh", "-c", &format!("exit {code}")]);
        assert_eq!(both.same(&format!("run, exit {code}"), &spec, of_run)?, Some(code));
    }
    let ends = ["exit 0", "exit 1", "exit 255", "kill -9 $$", "kill -15 $$; sleep 9"];
    let of_exec = |runtime: &Runc, bundle: &Bundle| {
        runtime.create("it", bundle)?.checked()?;
        runtime.start("it")?.checked()?;
        ends.iter()
            .map(|script| Ok(runtime.exec("it", &["sh", "-c", script])?.status.code()))
            .collect::<Result<Vec<_>>>()
    };
    let codes = both.same("exec", &Spec::new().args(["sleep", "60"]), of_exec)?;
    assert_eq!(codes, [0, 1, 255, 137, 143].map(Some));
    let missing = |runtime: &Runc, bundle: &Bundle| Ok(runtime.create("it", bundle)?.status.code());
    assert_eq!(both.same("a program that is not there", &Spec::new().args(["no-such"]), missing)?, Some(1));
    Ok(())
}

#[test]
fn descriptors_reach_the_container() -> Result<()> {
    let Some(both) = Both::new("descriptors_reach_the_container")? else { return Ok(()) };
    let (three, four) = (both.site.join("three"), both.site.join("four"));
    fs::write(&three, "third\n").unwrap();
    fs::write(&four, "fourth\n").unwrap();
    let looks = "for fd in 3 4 5; do cat <&$fd || echo none; done; echo \"$LISTEN_FDS $LISTEN_PID\"";
    for (env, flags, expected) in [
        ("", &["--preserve-fds", "2"][..], "third\nfourth\nnone\n \n"),
        ("", &["--preserve-fds=1"], "third\nnone\nnone\n \n"),
        ("export LISTEN_FDS=2 LISTEN_PID=$$;", &[], "third\nfourth\nnone\n2 1\n"),
        ("export LISTEN_FDS=1 LISTEN_PID=1;", &["--preserve-fds", "1"], "third\nnone\nnone\n \n"),
        ("", &[], "none\nnone\nnone\n \n"),
    ] {
        let create = |runtime: &Runc, bundle: &Bundle| {
            let command = runtime.command("it");
            let out = bundle.path.join("said");
            let text =
                format!("{env} exec \"$@\" 3<'{}' 4<'{}' >'{}' 2>&1", three.display(), four.display(), out.display());
            let mut shell = Command::new("sh");
            shell.args(["-c", &text, "sh"]).arg(command.get_program()).args(command.get_args());
            shell.envs(command.get_envs().filter_map(|(key, value)| Some((key, value?))));
            shell.args(["create", "--bundle"]).arg(&bundle.path).args(flags).arg("it");
            run(&mut shell, None, LIMIT)?.checked()?;
            runtime.start("it")?.checked()?;
            runtime.wait_stopped("it")?;
            Ok(fs::read_to_string(out)
                .unwrap()
                .lines()
                .filter(|line| !line.contains("Bad file"))
                .map(|line| format!("{line}\n"))
                .collect::<String>())
        };
        let what = format!("{env} {flags:?}");
        let said = both.same(&what, &Spec::new().args(["sh", "-c", looks]), create)?;
        assert_eq!(said, expected, "{what}");
    }
    Ok(())
}

#[test]
fn a_console_is_the_containers() -> Result<()> {
    let Some(both) = Both::new("a_console_is_the_containers")? else { return Ok(()) };
    let spec = Spec::new().args(["sh", "-c", "test -t 0 && test -t 2 && tty && read line && echo \"heard $line\""]);
    let said =
        both.same("a console", &spec.edit(|spec| spec["process"]["terminal"] = true.into()), |runtime, bundle| {
            let socket = bundle.path.join("console.sock");
            let listener = UnixListener::bind(&socket).unwrap();
            let mut command = runtime.command("it");
            command.arg("create").arg("--bundle").arg(&bundle.path).arg("--console-socket").arg(&socket).arg("it");
            run(&mut command, None, LIMIT)?.checked()?;
            let mut console = fs::File::from(received(&listener).unwrap());
            runtime.start("it")?.checked()?;
            // Words come when it waits for them: what is echoed stands behind what it has said.
            let mut said = Vec::new();
            while !said.ends_with(b"\n") {
                let mut byte = [0];
                console.read_exact(&mut byte).unwrap();
                said.extend(byte);
            }
            console.write_all(b"words\n").unwrap();
            // The end of a console that nobody has open any more is an error.
            let _ = console.read_to_end(&mut said);
            Ok(String::from_utf8_lossy(&said).into_owned())
        })?;
    assert!(said.contains("/dev/pts/0") && said.contains("heard words"), "{said:?}");
    Ok(())
}
