//! Claim: a record that may not fit, or of which the size cannot be known, stops the build with a sentence
//! that says what to do. Each file in `compile-fail/` is a program that must not build; its first line is the
//! sentence. Only a real build shows it: the check for the size runs when code is generated, after everything
//! that `cargo check` does.

use std::path::{Path, PathBuf};
use std::process::{Command, Output};
use std::sync::LazyLock;
use std::{env, fs};

const SENTENCE: &str = "//! Must not build: ";

#[test]
fn record_too_large_is_a_build_error() {
    let refused = build("record_too_large", &[]);
    assert_fails_with(&refused, "is larger than");
    let accepted = build("record_too_large", &["--features", "large_enough"]);
    assert!(accepted.status.success(), "{}", stderr(&accepted));
}

#[test]
fn each_mistake_is_answered_with_its_sentence() {
    let cases = cases();
    assert!(cases.len() > 10, "the cases have gone: {cases:?}");
    for case in cases {
        let source = fs::read_to_string(case_path(&case)).unwrap();
        let sentence = source.lines().next().unwrap().strip_prefix(SENTENCE).expect(&case);
        assert_fails_with(&build(&case, &[]), sentence);
    }
}

fn assert_fails_with(output: &Output, sentence: &str) {
    let stderr = stderr(output);
    assert!(!output.status.success(), "this built, but should say: {sentence}");
    assert!(stderr.contains(sentence), "expected: {sentence}\ngot: {stderr}");
}

fn stderr(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

fn build(case: &str, options: &[&str]) -> Output {
    let package = &*PACKAGE;
    Command::new(env::var_os("CARGO").unwrap_or("cargo".into()))
        .args(["build", "--offline", "--quiet", "--color=never", "--bin", case])
        .args(options)
        .arg("--target-dir")
        .arg(package.join("target"))
        .current_dir(package)
        .output()
        .unwrap()
}

/// A package with each case as a program, written where cargo keeps the tests' files. It is not a member of
/// the workspace, whose build it would break, but has the same lock file, so it builds offline from the same
/// sources.
static PACKAGE: LazyLock<PathBuf> = LazyLock::new(|| {
    let workspace = Path::new(env!("CARGO_MANIFEST_DIR")).parent().unwrap();
    let package = Path::new(env!("CARGO_TARGET_TMPDIR")).join("compile-fail");
    fs::create_dir_all(&package).unwrap();
    let mut manifest = format!(
        "[package]\nname = \"compile-fail\"\nedition = \"2024\"\n\n[workspace]\n\n\
         [features]\nlarge_enough = []\n\n\
         [dependencies]\npillarbox = {{ path = {workspace:?}, default-features = false }}\n\
         heapless = \"0.9\"\n\
         serde = {{ version = \"1\", default-features = false, features = [\"derive\"] }}\n"
    );
    for case in cases() {
        manifest += &format!("\n[[bin]]\nname = {case:?}\npath = {:?}\n", case_path(&case));
    }
    fs::write(package.join("Cargo.toml"), manifest).unwrap();
    fs::copy(workspace.join("Cargo.lock"), package.join("Cargo.lock")).unwrap();
    package
});

fn cases() -> Vec<String> {
    let files = fs::read_dir(cases_directory()).unwrap().map(|entry| entry.unwrap().file_name());
    let mut cases: Vec<_> =
        files.filter_map(|file| Some(file.to_str()?.strip_suffix(".rs")?.to_owned())).collect();
    cases.sort();
    cases
}

fn case_path(case: &str) -> PathBuf {
    cases_directory().join(case).with_extension("rs")
}

fn cases_directory() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("compile-fail")
}
