//! Decisions as pure functions: access presets, rules, commands as argv, and why.
