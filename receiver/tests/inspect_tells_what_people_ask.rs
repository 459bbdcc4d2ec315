//! `pillarbox inspect` as it is called: what it says of a dump whose every byte is known, to people and to programs, and what it says of
//! files that are no dumps.

mod images;

use std::path::PathBuf;
use std::process::{Command, Output};

use images::{GOLDEN, golden};
use pillarbox_receiver::inspect::{self, Fate, Inspection};
use pillarbox_receiver::kinds::Kinds;
use serde_json::{Value, json};

const KINDS: &str =
    "[[kind]]\nnumber = 7\nname = \"reading\"\nschema = \"{ meter: String, watt_hours: u64 }\"\n";

fn look() -> Inspection {
    inspect::look(&golden("word-8-page-256"), None, &Kinds::parse(KINDS).expect("it is a kinds file"))
}

fn keys(found: &Inspection, fate: Fate) -> Vec<&str> {
    found.records.iter().filter(|record| record.state == fate).map(|record| &record.key[..]).collect()
}

#[test]
fn every_golden_image_is_sound() {
    for (name, page) in GOLDEN {
        let found = inspect::look(&golden(name), None, &Kinds::default());
        assert!(found.is_sound, "{name}: {:?}", found.problems);
        let region = found.region.expect("it is sound");
        assert_eq!((&region.device[..], region.page as usize), ("meter-0042", page), "{name}");
    }
}

#[test]
fn whose_it_is_and_how_far_its_counters_came() {
    let found = look();
    assert!(found.is_sound, "{:?}", found.problems);
    let region = found.region.as_ref().expect("it is sound");
    assert_eq!((&region.device[..], region.origin, region.boot, region.sequence), ("meter-0042", 256, 2, 16));
    assert_eq!((region.page, region.word, region.incarnation.0), (256, 8, 0xa779_196b));
    let lanes: Vec<_> =
        found.lanes.iter().map(|lane| (lane.next, lane.ceiling, lane.uncertain, lane.pending)).collect();
    assert_eq!(lanes, [(1, 64, Some((1, 63)), 4), (16, 64, Some((16, 48)), 9)]);
    assert_eq!(found.late, ["meter-0042.c2fa0b43.0.1"]);
    assert_eq!(found.former[0].incarnation.0, 0xc2fa_0b43);
    assert_eq!(found.former[0].issued[0], 7);
    let account: Vec<_> =
        found.account.iter().map(|entry| (entry.lane, entry.reason, entry.first, entry.count)).collect();
    assert_eq!(account, [(0, "superseded", 4, 1), (0, "parked", 1, 1), (1, "evicted", 0, 7)]);
}

#[test]
fn every_record_with_its_kind_its_body_and_its_time() {
    let found = look();
    let pending = keys(&found, Fate::Pending);
    assert_eq!(
        pending[..4],
        ["c2fa0b43.0.3", "c2fa0b43.0.5", "c2fa0b43.0.6", "a779196b.0.0"]
            .map(|key| format!("meter-0042.{key}"))
    );
    assert_eq!(pending.len(), 13);
    assert_eq!(keys(&found, Fate::Dead), ["meter-0042.c2fa0b43.0.1"]);
    assert_eq!(keys(&found, Fate::Removed).len(), 4);
    let named = |key: &str, fate: Fate| {
        let is_it = |record: &&inspect::RecordView| record.key.ends_with(key) && record.state == fate;
        found.records.iter().find(is_it).expect("it is there")
    };
    let record = named(".c2fa0b43.0.5", Fate::Pending);
    assert_eq!(record.name.as_deref(), Some("reading"));
    assert_eq!(record.data, Some(json!({"meter": "meter-000042", "watt_hours": 25_000})));
    assert_eq!(record.at.map(|at| at.to_string()).as_deref(), Some("2027-01-15T08:00:00Z"));
    assert_eq!((record.tag, record.boot, record.uptime_ms), (Some(0xdead_beef), 1, 1000));
    let record = named(".c2fa0b43.0.3", Fate::Pending);
    assert_eq!((record.at, record.boot, record.uptime_ms), (None, 1, 1000));
    assert_eq!(record.attempts, Some(1), "it was rejected once");
    let record = named(".c2fa0b43.0.1", Fate::Dead);
    assert_eq!((record.cause, record.is_late), (Some("rejected"), true));
}

/// Runs the program on a file of these bytes.
fn run(name: &str, bytes: &[u8], arguments: &[&str]) -> Output {
    let folder = PathBuf::from(env!("CARGO_TARGET_TMPDIR")).join("inspect");
    std::fs::create_dir_all(&folder).expect("there is room");
    let (file, kinds) = (folder.join(name), folder.join(format!("{name}.kinds")));
    std::fs::write(&file, bytes).expect("there is room");
    std::fs::write(&kinds, KINDS).expect("there is room");
    let mut command = Command::new(env!("CARGO_BIN_EXE_pillarbox"));
    command.arg("inspect").arg(&file).arg("--kinds").arg(&kinds).args(arguments);
    command.output().expect("the program is built")
}

fn text(bytes: &[u8]) -> &str {
    std::str::from_utf8(bytes).expect("it is text")
}

#[test]
fn tables_for_people() {
    let output = run("people", &golden("word-8-page-256"), &[]);
    let shown = text(&output.stdout);
    println!("{shown}");
    assert_eq!(output.status.code(), Some(0), "{}", text(&output.stderr));
    for says in [
        "meter-0042: incarnation a779196b, boot 2",
        "from 1 on, at most 63",
        "{\"meter\":\"meter-000042\",\"watt_hours\":25000}",
        "reading (7)",
        "boot 1 + 1 s",
        "dead, rejected, to be sent again",
        "incarnation c2fa0b43 takes no more records",
        "tag 5",
        "Nothing is damaged.",
    ] {
        assert!(shown.contains(says), "{says}");
    }
    assert!(!shown.contains("c2fa0b43.0.0 "), "what was removed is not shown");
    let all = run("all", &golden("word-8-page-256"), &["--all"]);
    assert!(text(&all.stdout).contains("c2fa0b43.0.0 "), "unless all is asked for");
    let lane = run("lane", &golden("word-8-page-256"), &["--lane", "1"]);
    assert!(!text(&lane.stdout).contains("c2fa0b43.0.3 "));
}

#[test]
fn json_for_programs_and_an_exit_code_that_tells() {
    let mut image = golden("word-8-page-256");
    let output = run("sound", &image, &["--json", "--origin", "0x100"]);
    let found: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!((output.status.code(), &found["is_sound"]), (Some(0), &json!(true)));
    assert_eq!(found["totals"]["pending"], json!(13));
    assert_eq!(found["records"].as_array().map(Vec::len), Some(14), "pending and dead ones");
    let hit = found["records"][2]["address"].as_u64().expect("an address") as usize;
    image[hit + 12] ^= 0x10;
    let output = run("damaged", &image, &["--json"]);
    let found: Value = serde_json::from_slice(&output.stdout).expect("it is JSON");
    assert_eq!((output.status.code(), &found["is_sound"]), (Some(1), &json!(false)));
    assert_eq!(found["problems"][0]["address"], json!(hit), "{}", found["problems"]);
    assert_eq!(found["totals"]["pending"], json!(12));
}

#[test]
fn files_that_are_no_dumps() {
    let cases: [(&str, &[u8], &str); 5] = [
        ("hex", b":10010000214601360121470136007EFE09D2190140\n", "Intel HEX"),
        ("srec", b"S00F000068656C6C6F202020202000003C\n", "S-record"),
        ("elf", b"\x7fELF\x01\x01\x01\0", "ELF"),
        ("uf2", b"UF2\n\x57\x51\x5d\x9e", "UF2"),
        ("empty", b"", "is empty"),
    ];
    for (name, bytes, says) in cases {
        let output = run(name, bytes, &[]);
        let error = text(&output.stderr);
        assert!(!output.status.success() && error.contains(says), "{name}: {error}");
    }
    let output = run("nothing", &[0xff; 70_000], &[]);
    assert_eq!(output.status.code(), Some(1));
    assert!(text(&output.stdout).contains("there is no outbox in this dump"));
    let output = run("behind", &[0xff; 70_000], &["--origin", "80000"]);
    assert!(text(&output.stdout).contains("behind the end"), "{}", text(&output.stdout));
}
