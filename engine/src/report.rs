//! How errors are told: on standard error, and as a line of `--log` in runc's format, where engines look for the cause.
//!
//! libcontainer keeps causes to itself that happen in its child processes, and tells them as events for logs. They are
//! collected here, in a pipe that the children inherit, and belong to the message.

use std::fmt::Write as _;
use std::io::{PipeReader, PipeWriter, Read, Write};
use std::path::PathBuf;
use std::sync::Mutex;

use nix::fcntl::{FcntlArg, OFlag, fcntl};
use tracing::field::{Field, Visit};
use tracing::span::{Attributes, Id, Record};
use tracing::{Event, Level, Metadata, Subscriber};

/// Most bytes of a cause.
const MOST: usize = 4096;

/// Where errors go.
pub(crate) struct Report {
    pub(crate) file: Option<PathBuf>,
    pub(crate) json: bool,
}

impl Report {
    /// Tells an error: to the log where there is one, and to standard error.
    pub(crate) fn error(&self, message: &str) {
        let time = chrono::Utc::now().to_rfc3339_opts(chrono::SecondsFormat::Secs, true);
        let line = if self.json {
            serde_json::json!({ "level": "error", "msg": message, "time": time }).to_string()
        } else {
            format!("time=\"{time}\" level=error msg={message:?}")
        };
        let mut said = &*line;
        if let Some(path) = &self.file {
            let log = std::fs::OpenOptions::new().append(true).create(true).open(path);
            if log.and_then(|mut file| writeln!(file, "{line}")).is_ok() {
                said = message;
            }
        }
        let _ = writeln!(std::io::stderr(), "{said}");
    }
}

/// An error with all its causes, in one line.
pub(crate) fn chain(error: &dyn std::error::Error) -> String {
    let mut text = error.to_string();
    let mut next = error.source();
    while let Some(cause) = next {
        let cause_text = cause.to_string();
        if !text.contains(&cause_text) {
            let _ = write!(text, ": {cause_text}");
        }
        next = cause.source();
    }
    text
}

/// What libcontainer's processes say went wrong.
pub(crate) struct Causes(Option<PipeReader>);

impl Causes {
    /// Begins to collect. Without a pipe the messages are shorter, and nothing else.
    pub(crate) fn collect() -> Self {
        let Ok((reader, writer)) = std::io::pipe() else { return Self(None) };
        // Nobody waits: not who tells when the pipe is full, nor who reads while a process of the container has it open.
        for end in
            [fcntl(&reader, FcntlArg::F_SETFL(OFlag::O_NONBLOCK)), fcntl(&writer, FcntlArg::F_SETFL(OFlag::O_NONBLOCK))]
        {
            if end.is_err() {
                return Self(None);
            }
        }
        match tracing::subscriber::set_global_default(Collector(Mutex::new(writer))) {
            Ok(()) => Self(Some(reader)),
            Err(_) => Self(None),
        }
    }

    /// A message, with the first cause that was told and is not in it: what is told later wraps that.
    pub(crate) fn behind(self, message: String) -> String {
        let mut told = Vec::new();
        if let Some(reader) = self.0 {
            // Ends with EAGAIN; what was read until then counts.
            let _ = reader.take(MOST as u64).read_to_end(&mut told);
        }
        let told = String::from_utf8_lossy(&told);
        let message = message.replace(WRAPPING, "");
        let cause = told.lines().next().unwrap_or_default();
        let cause = cause.strip_prefix("failed to initialize container process: ").unwrap_or(cause);
        if cause.is_empty() || message.contains(cause) { message } else { format!("{message}: {cause}") }
    }
}

/// What libcontainer puts around every error of a container's first process.
const WRAPPING: &str = "failed to create container: exec process failed with error error in executing process : ";

/// Writes the errors among the events into the pipe, each as a line.
struct Collector(Mutex<PipeWriter>);

impl Subscriber for Collector {
    fn enabled(&self, metadata: &Metadata<'_>) -> bool {
        *metadata.level() == Level::ERROR
    }

    fn new_span(&self, _: &Attributes<'_>) -> Id {
        Id::from_u64(1)
    }

    fn record(&self, _: &Id, _: &Record<'_>) {}

    fn record_follows_from(&self, _: &Id, _: &Id) {}

    fn event(&self, event: &Event<'_>) {
        let mut line = Line::default();
        event.record(&mut line);
        let text = format!("{}{}\n", line.message, line.fields).replace("\n", " ");
        if let Ok(mut writer) = self.0.lock() {
            let _ = writer.write_all(format!("{}\n", text.trim()).as_bytes());
        }
    }

    fn enter(&self, _: &Id) {}

    fn exit(&self, _: &Id) {}
}

#[derive(Default)]
struct Line {
    message: String,
    fields: String,
}

impl Visit for Line {
    fn record_debug(&mut self, field: &Field, value: &dyn std::fmt::Debug) {
        let _ = match field.name() {
            "message" => write!(self.message, "{value:?}"),
            "err" | "error" | "e" | "ret" => write!(self.fields, ": {value:?}"),
            name => write!(self.fields, ", {name} {value:?}"),
        };
    }
}
