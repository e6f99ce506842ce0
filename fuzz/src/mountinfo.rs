//! Mount tables: what the kernel would write for made-up mounts is read back, and any bytes are read.

use node::mountinfo::{Mount, parse};

use crate::choices::Choices;

const FOLDERS: &[&str] =
    &["/", "/dev", "/a b", "/sys/fs/cgroup", "/x\\040y", "/tab\there", "/line\nend", "/#", "/é", "/ - "];
const TYPES: &[&str] = &["devtmpfs", "cgroup", "cgroup2", "ext4", "fuse.x", "tmpfs", "overlay"];
const OPTIONS: &[&str] = &["rw", "ro,nosuid", "rw,devices", "rw,lowerdir=/a:/b"];
const PROPAGATION: &[&str] = &["", "shared:1", "shared:9 master:2", "unbindable"];

/// Holds the reader to it.
pub fn run(data: &[u8]) {
    anything(data);
    let mut choices = Choices::new(data);
    let (mut expected, mut text) = (Vec::new(), String::new());
    while !choices.is_empty() && expected.len() < 16 {
        let made = Made::of(&mut choices);
        text.push_str(&made.line());
        expected.push(made);
    }
    let read = parse(text.as_bytes());
    assert_eq!(read.len(), expected.len(), "{text}");
    for (mount, made) in read.iter().zip(&expected) {
        assert!(made.is(mount), "{made:?} became {mount:?}");
    }
}

/// Every line that is read has the form of one, and none of it is lost.
fn anything(data: &[u8]) {
    let mounts = parse(data);
    assert!(mounts.len() <= data.split(|&byte| byte == b'\n').count());
    for mount in mounts {
        let line = format!(
            "{} 0 {}:{} {} {} {} {} - {} {} {}",
            mount.id,
            mount.dev.0,
            mount.dev.1,
            escape(&mount.root),
            escape(&mount.point),
            mount.options,
            mount.propagation,
            mount.fs,
            escape(&mount.source),
            mount.super_options
        );
        assert_eq!(parse(line.as_bytes()), [mount], "{line}");
    }
}

#[derive(Debug)]
struct Made {
    dev: (u32, u32),
    root: String,
    point: String,
    options: &'static str,
    propagation: &'static str,
    fs: &'static str,
    source: String,
    super_options: &'static str,
}

impl Made {
    fn of(choices: &mut Choices<'_>) -> Self {
        Self {
            dev: (choices.u32() >> 20, choices.u32() >> 12),
            root: path(choices),
            point: path(choices),
            options: *choices.of(OPTIONS),
            propagation: *choices.of(PROPAGATION),
            fs: *choices.of(TYPES),
            source: path(choices),
            super_options: *choices.of(OPTIONS),
        }
    }

    fn line(&self) -> String {
        let Self { dev, root, point, options, propagation, fs, source, super_options } = self;
        let (root, point, source) = (escape(root), escape(point), escape(source));
        let blank = if propagation.is_empty() { "" } else { " " };
        format!(
            "7 1 {}:{} {root} {point} {options}{blank}{propagation} - {fs} {source} {super_options}\n",
            dev.0, dev.1
        )
    }

    fn is(&self, mount: &Mount<'_>) -> bool {
        mount.dev == self.dev
            && mount.root == self.root
            && mount.point == self.point
            && mount.options == self.options
            && mount.propagation == self.propagation
            && mount.fs == self.fs
            && mount.source == self.source
            && mount.super_options == self.super_options
    }
}

/// One of the list with some bytes behind it that are text.
fn path(choices: &mut Choices<'_>) -> String {
    let folder = *choices.of(FOLDERS);
    format!("{folder}{}", String::from_utf8_lossy(choices.bytes(8)))
}

/// As the kernel's `seq_path` and `mangle` write it.
fn escape(text: &str) -> String {
    let mut out = String::new();
    for letter in text.chars() {
        match letter {
            ' ' | '\t' | '\n' | '\\' | '#' => out.push_str(&format!("\\{:03o}", u32::from(letter))),
            letter => out.push(letter),
        }
    }
    out
}
