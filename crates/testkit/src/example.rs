//! Finds programs that cargo builds beside the tests.

/// Returns the path of the example `name` of `package`.
///
/// # Panics
/// If it is not built. The message contains the command that builds it.
#[must_use]
pub fn example(package: &str, name: &str) -> String {
    let mut path = std::env::current_exe().expect("a test has a path");
    path.pop();
    path.pop();
    let path = path.join("examples").join(name);
    assert!(path.exists(), "`cargo build -p {package} --examples` builds the program of this test");
    path.into_os_string().into_string().expect("a path of ASCII")
}
