//! Places where a test build stops, so that a test can change what it wants between two of our steps. Nothing in a program
//! that is installed: the feature `stops` is off there, and a test looks.

/// Stops here, when the variable names this place. The tester says when to go on.
#[cfg(feature = "stops")]
pub(crate) fn at(place: &str) {
    if std::env::var_os("QUILT_GPU_STOP").is_some_and(|wanted| wanted == place) {
        let _ = nix::sys::signal::raise(nix::sys::signal::Signal::SIGSTOP);
    }
}

/// Goes on.
#[cfg(not(feature = "stops"))]
pub(crate) fn at(_place: &str) {}
