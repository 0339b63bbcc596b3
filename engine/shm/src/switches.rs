//! Switches that break code on purpose: a test that does not notice proves nothing.
//!
//! Compiled for tests alone; otherwise `on` is the constant `false` and nothing is left of a switch. A switch is in force
//! for one thread.

macro_rules! switches {
    ($(#[$about:meta])* $enum:ident { $($(#[$doc:meta])* $name:ident,)* }) => {
        $(#[$about])*
        #[derive(Clone, Copy, PartialEq, Eq, Hash, Debug)]
        pub(crate) enum $enum {
            $($(#[$doc])* $name,)*
        }

        #[cfg(test)]
        pub(crate) const ALL: &[$enum] = &[$($enum::$name,)*];

        #[cfg(test)]
        thread_local! {
            static CURRENT: std::cell::Cell<Option<$enum>> = const { std::cell::Cell::new(None) };
        }

        /// Whether this switch is in force.
        #[cfg(not(test))]
        #[inline(always)]
        pub(crate) const fn on(_: $enum) -> bool {
            false
        }

        #[cfg(test)]
        pub(crate) fn on(switch: $enum) -> bool {
            CURRENT.get() == Some(switch)
        }

        /// In this thread, from now on.
        #[cfg(test)]
        pub(crate) fn set(switch: Option<$enum>) {
            CURRENT.set(switch);
        }
    };
}
