//! Logging through `defmt`, through `log`, or not at all, decided by features and written the same everywhere.

#[cfg(all(feature = "defmt", feature = "log"))]
compile_error!("the features `defmt` and `log` exclude each other: choose one");

#[allow(unused_macros)]
macro_rules! warning {
    ($($arg:expr),* $(,)?) => {{
        #[cfg(feature = "defmt")]
        ::defmt::warn!($($arg),*);
        #[cfg(all(feature = "log", not(feature = "defmt")))]
        ::log::warn!($($arg),*);
        #[cfg(not(any(feature = "defmt", feature = "log")))]
        { $(let _ = &$arg;)* }
    }};
}

#[allow(unused_macros)]
macro_rules! info {
    ($($arg:expr),* $(,)?) => {{
        #[cfg(feature = "defmt")]
        ::defmt::info!($($arg),*);
        #[cfg(all(feature = "log", not(feature = "defmt")))]
        ::log::info!($($arg),*);
        #[cfg(not(any(feature = "defmt", feature = "log")))]
        { $(let _ = &$arg;)* }
    }};
}
