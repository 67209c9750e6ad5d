//! How long an event loop looks for what comes, before it sleeps: a window that adapts itself.
//!
//! A sleeper that is woken sooner than the longest window shows that looking would have found the
//! bytes: the window grows. One that slept for longer shows that looking would have been in vain:
//! the window shrinks. A window of zero costs nothing.

use core::time::Duration;

/// The window after the first sign that looking pays.
const FIRST: Duration = Duration::from_micros(4);

/// The window of one core.
#[derive(Debug)]
pub(crate) struct Window {
    min: Duration,
    max: Duration,
    now: Duration,
}

impl Window {
    /// It is never shorter than `min`, and adapts itself up to `max`.
    pub(crate) fn new(min: Duration, max: Duration) -> Self {
        Self {
            min,
            max: max.max(min),
            now: min,
        }
    }

    /// Its length now.
    pub(crate) fn length(&self) -> Duration {
        self.now
    }

    /// Whether it changes at all.
    pub(crate) fn is_adaptive(&self) -> bool {
        self.max > self.min
    }

    /// Notes that something has come for one that slept so long.
    pub(crate) fn note_news(&mut self, slept: Duration) {
        let next = match slept <= self.max {
            true => (2 * self.now).max(FIRST),
            false => self.now / 2,
        };
        // Halves of a little go on for ever.
        let next = if next < FIRST { Duration::ZERO } else { next };
        self.now = next.clamp(self.min, self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_grows_while_looking_would_have_paid_and_shrinks_while_not() {
        let us = Duration::from_micros;
        let mut window = Window::new(Duration::ZERO, us(50));
        assert_eq!(window.length(), Duration::ZERO);
        for expected in [4, 8, 16, 32, 50, 50] {
            window.note_news(us(50));
            assert_eq!(window.length(), us(expected));
        }
        for expected in [25_000, 12_500, 6_250, 0, 0] {
            window.note_news(us(51));
            assert_eq!(window.length(), Duration::from_nanos(expected));
        }
        let mut fixed = Window::new(us(7), us(7));
        assert!(!fixed.is_adaptive());
        fixed.note_news(us(1));
        assert_eq!(fixed.length(), us(7));
    }
}
