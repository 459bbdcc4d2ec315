//! The database of the tests is a real one: databases are apart from each other, a kill is a crash, what was committed
//! before it is there after it, and what was not is not.

use std::path::Path;
use std::time::{Duration, Instant};

use receiver_testkit::{Postgres, Storage};

#[test]
fn databases_of_one_server_are_apart() {
    let postgres = Postgres::shared();
    let (first, second) = (postgres.fresh_database(), postgres.fresh_database());
    assert_ne!(first, second);
    postgres.query(&first, "CREATE TABLE note (number int)");
    let tables = "SELECT count(*) FROM pg_tables WHERE tablename = 'note'";
    assert_eq!(postgres.query(&first, tables), "1");
    assert_eq!(postgres.query(&second, tables), "0");
}

#[test]
fn the_shared_server_is_one() {
    assert_eq!(Postgres::shared().pid(), Postgres::shared().pid());
}

fn a_kill_is_a_crash(storage: Storage) {
    let postgres = Postgres::start_on(storage);
    let (url, port) = (postgres.fresh_database(), postgres.port());
    postgres.query(&url, "CREATE TABLE note (number int)");
    postgres.query(&url, "INSERT INTO note VALUES (1)");
    let before = postgres.pid();
    let open = std::thread::spawn({
        let (programs, url) = (receiver_testkit::tools::postgres_programs().unwrap(), url.clone());
        let uncommitted = "BEGIN; INSERT INTO note VALUES (2); SELECT pg_sleep(60); COMMIT";
        move || std::process::Command::new(programs.join("psql")).args(["-qc", uncommitted, &url]).output()
    });
    let sleeping = "SELECT count(*) FROM pg_stat_activity WHERE wait_event = 'PgSleep'";
    let deadline = Instant::now() + Duration::from_secs(30);
    while postgres.query(&url, sleeping) != "1" {
        assert!(Instant::now() < deadline, "the second client does not come");
    }
    postgres.kill();
    assert!(!open.join().unwrap().unwrap().status.success(), "a client notices");
    assert!(std::net::TcpStream::connect(("127.0.0.1", port)).is_err(), "nobody listens");
    assert_eq!(postgres.pid(), None);
    postgres.kill();
    postgres.start_again();
    assert_ne!(postgres.pid(), before);
    assert_eq!(postgres.query(&url, "SELECT number FROM note"), "1");
    assert!(postgres.log().contains("was not properly shut down; automatic recovery in progress"));
    let fsync = if storage == Storage::Disk { "on" } else { "off" };
    assert_eq!(postgres.query(&url, "SHOW fsync"), fsync);
}

#[test]
fn a_kill_is_a_crash_in_memory() {
    a_kill_is_a_crash(Storage::Memory);
}

#[test]
fn a_kill_is_a_crash_on_disk() {
    a_kill_is_a_crash(Storage::Disk);
}

#[test]
fn a_refused_statement_is_told() {
    let postgres = Postgres::shared();
    let refused = std::panic::catch_unwind(|| postgres.query(&postgres.url(), "SELECT nothing FROM nowhere"));
    let why = *refused.unwrap_err().downcast::<String>().unwrap();
    assert!(why.contains("\"nowhere\" does not exist"), "{why}");
}

#[test]
fn nothing_is_left() {
    let postgres = Postgres::start();
    let data = postgres.query(&postgres.url(), "SHOW data_directory");
    let pid = postgres.pid().unwrap();
    assert!(Path::new(&data).is_dir());
    drop(postgres);
    assert!(!Path::new(&data).exists());
    assert!(!Path::new(&format!("/proc/{pid}")).exists());
}
