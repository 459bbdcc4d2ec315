//! A program runs as it does for an operator: it is waited for until it is ready, what it says is kept, a stop is a request and
//! a kill is none.

use std::os::unix::process::ExitStatusExt;
use std::path::Path;
use std::time::{Duration, Instant};

use receiver_testkit::Program;

fn shell(script: &str) -> Program {
    Program::new("/bin/sh").args(["-c", script])
}

fn why_it_panics(act: impl FnOnce() + std::panic::UnwindSafe) -> String {
    *std::panic::catch_unwind(act).unwrap_err().downcast::<String>().unwrap()
}

#[test]
fn a_line_says_that_it_is_ready() {
    let program = shell("echo one >&2; echo \"listening on $PORT\"; exec sleep 60").env("PORT", "4242");
    let (mut running, line) = program.start_until_line("listening");
    assert_eq!(line, "listening on 4242");
    assert_eq!(running.line_with("one"), "one");
    assert!(running.ended().is_none());
    running.kill();
    assert_eq!(running.ended().and_then(|status| status.signal()), Some(9));
    let (_again, line) = program.start_until_line("listening");
    assert_eq!(line, "listening on 4242");
}

#[test]
fn a_url_says_that_it_is_ready() {
    let listener = std::net::TcpListener::bind("127.0.0.1:0").unwrap();
    let url = format!("http://{}/ready", listener.local_addr().unwrap());
    let answers = ["HTTP/1.1 503 Service Unavailable\r\n\r\n", "HTTP/1.1 200 OK\r\n\r\n"];
    let server = std::thread::spawn(move || {
        for answer in answers {
            let mut stream = listener.accept().unwrap().0;
            std::io::Read::read(&mut stream, &mut [0; 1024]).unwrap();
            std::io::Write::write_all(&mut stream, answer.as_bytes()).unwrap();
        }
    });
    shell("exec sleep 60").start_until_url(&url);
    server.join().unwrap();
}

#[test]
fn what_is_never_ready_is_told() {
    let why = why_it_panics(|| drop(shell("echo no disk >&2; exit 3").start_until_line("listening")));
    assert_eq!(why, "sh has ended and has not said \"listening\"; it said:\nno disk");
    // Port 1 is nobody's.
    let why = why_it_panics(|| drop(shell("echo no disk; exit 3").start_until_url("http://127.0.0.1:1/")));
    assert!(why.contains("exit status: 3 before") && why.ends_with("no disk"), "{why}");
    let why = why_it_panics(|| drop(Program::new("/nowhere/pillarbox").start()));
    assert!(why.starts_with("cannot start /nowhere/pillarbox: "), "{why}");
}

#[test]
fn a_stop_is_a_request() {
    let script = "trap 'echo good bye; exit 7' TERM; echo ready; while :; do sleep 0.05; done";
    let (mut running, _) = shell(script).start_until_line("ready");
    assert_eq!(running.stop().code(), Some(7));
    assert_eq!(running.output(), "ready\ngood bye");
    assert_eq!(running.stop().code(), Some(7), "what has ended is not sent signals");
}

#[test]
fn a_kill_is_no_request() {
    let script = "trap 'echo good bye' TERM; echo ready; while :; do sleep 0.05; done";
    let (mut running, _) = shell(script).start_until_line("ready");
    running.kill();
    assert_eq!(running.output(), "ready");
}

#[test]
fn dropping_ends_it() {
    let (running, _) = shell("echo ready; exec sleep 60").start_until_line("ready");
    let process = format!("/proc/{}", running.pid());
    assert!(Path::new(&process).exists());
    let began = Instant::now();
    drop(running);
    assert!(!Path::new(&process).exists());
    assert!(began.elapsed() < Duration::from_secs(10));
}
