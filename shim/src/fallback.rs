//! When GPUs cannot be had: wait for them as long as was asked, then fall back to what was asked, or refuse.
//!
//! Nothing is held while waiting: each turn is a whole attempt, judgement included.

use std::time::{Duration, Instant};

use contract::request::{Asked, Fallback, Request};
use contract::{Code, Note, Refusal};
use ledger::{Holder, Ledger, Mark, Place};

/// The turns of one create.
#[derive(Default)]
pub(crate) struct Turn {
    /// What is asked for instead of what the spec says.
    pub(crate) instead: Option<Asked>,
    /// What is worth knowing of that.
    pub(crate) note: Option<Note>,
    /// Until when it waits, and where, once it stands in the queue.
    queued: Option<(Instant, Place)>,
}

impl Turn {
    /// Whether this request may have to wait: then it is worth to remember what the leases were like before.
    pub(crate) fn waits(&self, asked: &Asked) -> bool {
        matches!(asked, Asked::Gpus(request) if request.terms.wait > 0 && self.instead.is_none())
    }

    /// Whether to try again after these refusals; it has waited by then, or asks for something else.
    pub(crate) fn again(
        &mut self,
        refusals: &mut [Refusal],
        asked: &Asked,
        ledger: &Ledger,
        holder: &Holder,
        mark: Mark,
    ) -> bool {
        let (Asked::Gpus(request), [refusal]) = (asked, refusals) else { return false };
        if refusal.code == Code::CapacityFull
            && self.waits(asked)
            && self.waited(request, refusal, ledger, holder, mark)
        {
            return true;
        }
        match self.instead {
            None => self.falls_back(request, refusal),
            Some(_) => false,
        }
    }

    /// Waits for a change, in the queue; no more when the time is over. Says so in the refusal where it may not wait.
    fn waited(
        &mut self,
        request: &Request,
        refusal: &mut Refusal,
        ledger: &Ledger,
        holder: &Holder,
        mark: Mark,
    ) -> bool {
        let Some((until, place)) = &mut self.queued else {
            let time = Duration::from_secs(request.terms.wait);
            match ledger.queue(request, holder, time.as_secs()) {
                Ok(place) => self.queued = Instant::now().checked_add(time).map(|until| (until, place)),
                Err(full) if full.code == Code::CapacityFull => *refusal = full,
                Err(_) => {}
            }
            // The queue's own file is a change too, and whoever has the GPUs may have ended meanwhile.
            return self.queued.is_some();
        };
        let left = until.saturating_duration_since(Instant::now());
        ledger.sleep_on(mark, left);
        ledger.keep(place);
        !left.is_zero()
    }

    fn falls_back(&mut self, request: &Request, refusal: &Refusal) -> bool {
        let Some(instead) = instead(request, refusal) else { return false };
        self.note = Some(note(request, refusal, &instead));
        self.instead = Some(instead);
        true
    }

    /// Leaves the queue.
    pub(crate) fn end(&self, ledger: Option<&Ledger>, holder: impl FnOnce() -> Holder) {
        if let (Some(_), Some(ledger)) = (&self.queued, ledger) {
            // What stays is found to be dead by whoever looks next.
            let _ = ledger.leave_queue(&holder());
        }
    }
}

/// What a request falls back to after this refusal: GPUs that are not there, not free or not in order are no mistake of
/// whoever asked for a number of them; a name that this node does not have is.
pub(crate) fn instead(request: &Request, refusal: &Refusal) -> Option<Asked> {
    let lacks = match refusal.code {
        Code::CapacityFull | Code::GpuUnavailable => true,
        Code::UnknownGpu => request.ids.is_empty(),
        _ => false,
    };
    match &request.terms.fallback {
        Fallback::Cpu if lacks => Some(Asked::Nothing),
        Fallback::Kind(kind) if lacks => Some(Asked::Gpus(request.of_kind(kind))),
        _ => None,
    }
}

/// What is worth knowing of a fall back.
pub(crate) fn note(request: &Request, refusal: &Refusal, instead: &Asked) -> Note {
    let what = match instead {
        Asked::Gpus(request) => format!("GPUs of kind {}", request.kind.as_deref().unwrap_or_default()),
        _ => "no GPU".to_owned(),
    };
    Note::new("fallback", request.place("fallback"), format!("{}; it falls back to {what}", refusal.message))
}

/// Whether a container that asks for this may have been started without a GPU.
pub(crate) fn is_cpu(asked: &Asked) -> bool {
    matches!(asked, Asked::Gpus(request) if request.terms.fallback == Fallback::Cpu)
}

#[cfg(test)]
mod tests {
    use contract::request::{Source, Words};

    use super::*;

    fn request(words: &[(&'static str, &str)]) -> Request {
        let mut given = Words::default();
        words.iter().for_each(|(key, value)| given.set(key, (*key).into(), (*value).into()));
        let Ok(Asked::Gpus(request)) = given.ask(Source::Environment) else { panic!("{words:?}") };
        request
    }

    #[test]
    fn what_falls_back_to_what() {
        for (words, code, expected) in [
            (&[("count", "1")][..], Code::CapacityFull, None),
            (&[("count", "1"), ("fallback", "fail")], Code::CapacityFull, None),
            (&[("count", "1"), ("fallback", "cpu")], Code::CapacityFull, Some(Asked::Nothing)),
            (&[("count", "1"), ("fallback", "cpu")], Code::GpuUnavailable, Some(Asked::Nothing)),
            (&[("count", "1"), ("fallback", "cpu")], Code::UnknownGpu, Some(Asked::Nothing)),
            (&[("ids", "nvidia7"), ("fallback", "cpu")], Code::UnknownGpu, None),
            (&[("ids", "nvidia7"), ("fallback", "cpu")], Code::CapacityFull, Some(Asked::Nothing)),
            (&[("count", "1"), ("fallback", "cpu")], Code::Policy, None),
            (&[("count", "1"), ("fallback", "cpu")], Code::DriverNotReady, None),
            (&[("count", "1"), ("fallback", "cpu")], Code::VerifyFailed, None),
        ] {
            let refusal = Refusal::new(code, "r", "m", "h");
            assert_eq!(instead(&request(words), &refusal), expected, "{words:?} {code:?}");
        }
        let named = request(&[("ids", "nvidia0,nvidia1"), ("kind", "h100"), ("fallback", "L4")]);
        let Some(Asked::Gpus(other)) = instead(&named, &Refusal::new(Code::CapacityFull, "r", "m", "h")) else {
            panic!()
        };
        assert_eq!((other.count, other.kind.as_deref(), other.ids.len()), (2, Some("l4"), 0));
    }
}
