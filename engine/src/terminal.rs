//! A terminal in the foreground: what is typed into the caller's goes to the container's, and what is written there comes
//! back. The caller's is raw meanwhile, and afterwards what it was.
//!
//! libcontainer makes the container's terminal and sends it to a socket; here the socket is our own.

use std::fs::File;
use std::io::{self, IoSliceMut, Read, Write, stderr, stdin, stdout};
use std::mem::MaybeUninit;
use std::os::fd::{AsFd, AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::net::UnixListener;
use std::path::{Path, PathBuf};

use rustix::event::{PollFd, PollFlags, Timespec, poll};
use rustix::net::{RecvAncillaryBuffer, RecvAncillaryMessage, RecvFlags, recvmsg};
use rustix::termios::{
    OptionalActions, OutputModes, Termios, isatty, tcgetattr, tcgetwinsize, tcsetattr, tcsetwinsize,
};

/// Most bytes that are on their way in one direction.
const MOST: usize = 4096;

/// How often what an ended process wrote is looked for: other processes that go on writing are not waited for.
const REST: usize = 512;

/// Where libcontainer sends the container's terminal, and the caller's that it will be passed on to.
pub(crate) struct Socket {
    listener: UnixListener,
    /// Through this folder the socket has a short name, wherever the state root is.
    folder: File,
    name: String,
    outer: File,
}

impl Socket {
    /// Makes a socket in the state root, which is there.
    ///
    /// # Errors
    /// That we have no terminal, or why there is no socket.
    pub(crate) fn bind(root: &Path) -> Result<Self, String> {
        let failed = |cause: io::Error| format!("cannot make a console socket in {}: {cause}", root.display());
        let outer = outer()?;
        let folder = File::open(root).map_err(failed)?;
        let name = format!(".console-{}", std::process::id());
        // Left by a process of this number that was killed.
        let _ = std::fs::remove_file(root.join(&name));
        let listener = UnixListener::bind(below(&folder, &name)).map_err(failed)?;
        listener.set_nonblocking(true).map_err(failed)?;
        Ok(Self { listener, folder, name, outer })
    }

    /// Its name, good for this process.
    pub(crate) fn path(&self) -> PathBuf {
        below(&self.folder, &self.name)
    }

    /// Lines and columns of the caller's terminal, where it has any.
    pub(crate) fn size(&self) -> Option<(u16, u16)> {
        tcgetwinsize(&self.outer).ok().map(|size| (size.ws_row, size.ws_col))
    }

    /// The container's terminal, once libcontainer made it.
    ///
    /// # Errors
    /// Why there is none.
    pub(crate) fn terminal(self) -> Result<Terminal, String> {
        let failed = |cause: io::Error| format!("cannot take the container's terminal: {cause}");
        let (stream, _) = self.listener.accept().map_err(failed)?;
        let mut space = [MaybeUninit::uninit(); rustix::cmsg_space!(ScmRights(1))];
        let mut rights = RecvAncillaryBuffer::new(&mut space);
        let mut name = [0; MOST];
        let flags = RecvFlags::CMSG_CLOEXEC | RecvFlags::DONTWAIT;
        recvmsg(&stream, &mut [IoSliceMut::new(&mut name)], &mut rights, flags)
            .map_err(|cause| failed(cause.into()))?;
        let sent = rights.drain().find_map(|message| match message {
            RecvAncillaryMessage::ScmRights(mut sent) => sent.next(),
            _ => None,
        });
        let inner = File::from(sent.ok_or("cannot take the container's terminal: the message has none")?);
        let outer = self.outer.try_clone().map_err(failed)?;
        Terminal::new(inner, outer).map_err(failed)
    }
}

impl Drop for Socket {
    fn drop(&mut self) {
        let _ = std::fs::remove_file(self.path());
    }
}

/// Line ends are the caller's terminal's to make, as under runc.
pub(crate) fn leave_line_ends(inner: impl AsFd) -> rustix::io::Result<()> {
    let mut modes = tcgetattr(&inner)?;
    modes.output_modes.remove(OutputModes::ONLCR);
    tcsetattr(&inner, OptionalActions::Now, &modes)
}

fn below(folder: &File, name: &str) -> PathBuf {
    PathBuf::from(format!("/proc/self/fd/{}/{name}", folder.as_raw_fd()))
}

/// The terminal that we were called from.
fn outer() -> Result<File, String> {
    let standard: [&dyn Fn() -> io::Result<OwnedFd>; 3] =
        [&|| stdin().as_fd().try_clone_to_owned(), &|| stdout().as_fd().try_clone_to_owned(), &|| {
            stderr().as_fd().try_clone_to_owned()
        }];
    if let Some(found) = standard.iter().filter_map(|fd| fd().ok()).find(|fd| isatty(fd)) {
        return Ok(found.into());
    }
    File::options().read(true).write(true).open("/dev/tty").map_err(|cause| {
        format!("a terminal is asked for and this call has none: /dev/tty: {cause}; give --detach and --console-socket")
    })
}

/// The container's terminal and the caller's.
pub(crate) struct Terminal {
    inner: File,
    outer: File,
    /// What the caller's was, once it is raw.
    before: Option<Termios>,
    input: Way,
    output: Way,
}

impl Terminal {
    fn new(inner: File, outer: File) -> io::Result<Self> {
        leave_line_ends(&inner)?;
        rustix::io::ioctl_fionbio(&inner, true)?;
        let input = Way::new(stdin().as_fd().try_clone_to_owned()?.into(), inner.try_clone()?);
        let output = Way::new(inner.try_clone()?, stdout().as_fd().try_clone_to_owned()?.into());
        let terminal = Self { inner, outer, before: None, input, output };
        terminal.resize();
        Ok(terminal)
    }

    /// Gives the container's terminal the size of the caller's, where that has one.
    pub(crate) fn resize(&self) {
        let _ = tcgetwinsize(&self.outer).and_then(|size| tcsetwinsize(&self.inner, size));
    }

    /// Makes the caller's terminal raw, but for how it shows lines. Signals are held back from here on, so that it will be
    /// put back.
    ///
    /// # Errors
    /// Why it cannot be.
    pub(crate) fn raw(&mut self) -> Result<(), String> {
        let failed = |cause: rustix::io::Errno| format!("cannot make the caller's terminal raw: {cause}");
        let mut modes = tcgetattr(&self.outer).map_err(failed)?;
        self.before = Some(modes.clone());
        modes.make_raw();
        modes.output_modes.insert(OutputModes::OPOST);
        tcsetattr(&self.outer, OptionalActions::Now, &modes).map_err(failed)
    }

    /// Waits until there is something to pass on, or `other` can be read, and passes it on.
    ///
    /// # Errors
    /// Why we cannot wait.
    pub(crate) fn pass(&mut self, other: BorrowedFd<'_>) -> io::Result<()> {
        let wanted = [self.input.wants(), self.output.wants()];
        let mut fds = vec![PollFd::from_borrowed_fd(other, PollFlags::IN)];
        fds.extend(wanted.iter().flatten().cloned());
        match poll(&mut fds, None) {
            Err(rustix::io::Errno::INTR) => return Ok(()),
            done => done?,
        };
        let mut ready = fds.iter().skip(1).map(|fd| !fd.revents().is_empty());
        let [input, output] = wanted.map(|way| way.is_some() && ready.next() == Some(true));
        if input {
            self.input.step();
        }
        if output {
            self.output.step();
        }
        Ok(())
    }

    /// Passes on what the process wrote that has ended.
    pub(crate) fn rest(&mut self) {
        const NOW: Timespec = Timespec { tv_sec: 0, tv_nsec: 0 };
        for _ in 0..REST {
            let until = self.output.held.is_empty().then_some(&NOW);
            let Some(fd) = self.output.wants() else { break };
            if poll(&mut [fd], until).is_ok_and(|ready| ready == 0) {
                break;
            }
            self.output.step();
        }
    }
}

impl Drop for Terminal {
    fn drop(&mut self) {
        if let Some(before) = &self.before {
            let _ = tcsetattr(&self.outer, OptionalActions::Now, before);
        }
    }
}

/// One direction. Each step reads or writes once, when that keeps nobody waiting: neither side holds up the other.
struct Way {
    from: File,
    to: File,
    held: Vec<u8>,
    open: bool,
}

impl Way {
    fn new(from: File, to: File) -> Self {
        Self { from, to, held: Vec::new(), open: true }
    }

    fn wants(&self) -> Option<PollFd<'_>> {
        match (self.held.is_empty(), self.open) {
            (false, _) => Some(PollFd::new(&self.to, PollFlags::OUT)),
            (true, true) => Some(PollFd::new(&self.from, PollFlags::IN)),
            (true, false) => None,
        }
    }

    fn step(&mut self) {
        let later = |cause: &io::Error| matches!(cause.kind(), io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted);
        if self.held.is_empty() {
            let mut bytes = [0; MOST];
            match self.from.read(&mut bytes) {
                Err(cause) if later(&cause) => {}
                Ok(0) | Err(_) => self.open = false,
                Ok(read) => self.held.extend(bytes.iter().take(read)),
            }
        } else {
            match self.to.write(&self.held) {
                Err(cause) if later(&cause) => {}
                Ok(written) => drop(self.held.drain(..written.min(self.held.len()))),
                // Nobody listens: the container goes on.
                Err(_) => self.held.clear(),
            }
        }
    }
}
