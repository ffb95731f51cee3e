//! Handles internal inconsistencies: an index names a missing entry, or a counter would drop below
//! zero.

/// The broker's indexes contradict each other. That is a defect in heft, and no peer can cause it.
/// Tests, which run with assertions, stop here. A leader logs it and continues as if there were
/// nothing to do.
macro_rules! broken {
    ($($what:tt)+) => {{
        debug_assert!(false, $($what)+);
        tracing::error!("a defect of heft, please report it with the lines before this one: {}", format_args!($($what)+));
    }};
}

/// One less of what was counted before, of which there has to be one.
macro_rules! count_down {
    ($count:expr, $by:expr, $($what:tt)+) => {
        match $count.checked_sub($by) {
            Some(left) => $count = left,
            None => {
                $crate::core::broken!($($what)+);
                $count = 0;
            }
        }
    };
}

pub(crate) use {broken, count_down};
