//! Logs are read by many and kept for long, help is pasted into tickets, errors into chats. None of them may hold a secret, a token or
//! the password of a database, at whatever level and whatever goes wrong.

mod operator;

use operator::{Operator, send_some};
use receiver_testkit::Fleet;
use serde_json::json;

const PASSWORD: &str = "hunter2hunter2";

/// Looks for a secret in all forms in which a program may write bytes down.
#[track_caller]
fn is_nowhere(secret: &str, text: &str) {
    let bytes = hex::decode(secret.trim_start_matches("pbx_")).unwrap_or_else(|_| secret.as_bytes().to_vec());
    let listed = format!("{:?}", &bytes[..8]);
    let listed = listed.trim_matches(['[', ']']).to_owned();
    for form in [secret.to_owned(), secret.to_uppercase(), hex::encode(&bytes), listed] {
        assert!(!text.contains(&form), "{form} is in:\n{text}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_session_leaves_no_secret_in_the_log_at_any_level() {
    for format in ["text", "json"] {
        let operator = Operator::new();
        operator.let_in(1, 41);
        let given = Fleet::members_of(1, 41).remove(0).secret;
        operator.run("token add --role admin --out admin.token").done();
        let receiver = operator.serve(&format!("--log trace --log-format {format}"));
        let afar = format!("--server {} --token-file admin.token", receiver.url);
        let mut secrets = vec![hex::encode(given), operator.read("admin.token").trim().to_owned()];
        for command in ["device add meter-9", "device rotate meter-9"] {
            let told = operator.json(&format!("{command} {afar}"));
            secrets.push(told["secret"].as_str().unwrap().to_owned());
        }
        operator.run(&format!("device add given --secret-from given.secret {afar}")).done();
        let client = operator.json(&format!("token add --role client {afar}"))["token"].clone();
        let client = client.as_str().unwrap().to_owned();
        drop(send_some(1, 41, &receiver.url).await);
        let post = |token: &str| {
            let request = reqwest::Client::new().post(format!("{}/v1/records/1", receiver.url));
            request.bearer_auth(token).header("idempotency-key", "\"k\"").json(&json!({ "a": 1 })).send()
        };
        assert!(post(&client).await.unwrap().status().is_success());
        // A good secret where it is not expected, and almost good ones.
        assert_eq!(post(&format!("{client}0")).await.unwrap().status(), 401);
        let url = format!("{}/v1/admin/devices/{}?token={client}", receiver.url, secrets[0]);
        assert_eq!(reqwest::get(url).await.unwrap().status(), 401);
        operator.run(&format!("token revoke 2 {afar}")).done();
        assert_eq!(post(&client).await.unwrap().status(), 401);
        secrets.push(client);
        let log = receiver.stop();
        assert!(log.contains("answered"), "nothing was logged:\n{log}");
        for secret in &secrets {
            is_nowhere(secret, &log);
        }
        // The log would have shown it: what is no secret is there.
        assert!(log.contains("/v1/admin/devices/{device}/rotate"), "{log}");
    }
}

#[test]
fn the_password_of_a_database_is_in_no_help_and_no_error() {
    let operator = Operator::new();
    let url = format!("postgres://pillarbox:{PASSWORD}@127.0.0.1:1/fleet");
    let variable = [("PILLARBOX_STORE", url.as_str())];
    operator.write("pillarbox.toml", &format!("store = '{url}'\n"));
    for command in
        ["serve --help", "serve -h", "device list --help", "check --help", "backup --help", "--help"]
    {
        let said = operator.run_with(command, &variable);
        assert!(said.code == Some(0) && !said.stdout.contains(PASSWORD), "{command}: {said:?}");
    }
    for command in
        ["device list", "serve --listen 127.0.0.1:0 --log trace", "check", "token add --role viewer"]
    {
        for variables in [&variable[..], &[]] {
            let said = operator.run_with(command, variables);
            assert_eq!(said.code, Some(1), "{command}: {said:?}");
            is_nowhere(PASSWORD, &format!("{}{}", said.stdout, said.stderr));
        }
    }
}

#[test]
fn secrets_that_were_read_wrong_are_not_repeated() {
    let operator = Operator::new();
    let almost = "ab".repeat(31);
    operator.write("almost.secret", &almost);
    let said = operator.run("device add meter-1 --secret-from almost.secret");
    is_nowhere(&almost, &said.stderr);
    said.refused(2, "64 hexadecimal digits");
    // There is no way to write one into the command.
    assert_eq!(operator.run(&format!("device add meter-1 --secret {almost}ab")).code, Some(2));
    assert_eq!(operator.run("token add --role viewer --token x").code, Some(2));
    let with_password = format!("http://u:{PASSWORD}@127.0.0.1:1");
    let said =
        operator.run_with("device list", &[("PILLARBOX_SERVER", &with_password), ("PILLARBOX_TOKEN", "x")]);
    is_nowhere(PASSWORD, &said.stderr);
    said.refused(2, "--server wants");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn files_with_secrets_are_for_their_owner_only() {
    let operator = Operator::new();
    operator.run("device add meter-1 --secret-file meter-1.secret").done();
    let first = operator.read("meter-1.secret");
    operator.run("device rotate meter-1 --secret-file rotated.secret").done();
    assert_ne!(first, operator.read("rotated.secret"));
    operator.run("token add --role viewer --out viewer.token").done();
    operator.run("backup copy.db").done();
    let receiver = operator.serve("");
    assert!(reqwest::get(format!("{}/readyz", receiver.url)).await.unwrap().status().is_success());
    let files = [
        "pillarbox.db",
        "pillarbox.db-wal",
        "pillarbox.db-shm",
        "meter-1.secret",
        "rotated.secret",
        "viewer.token",
        "copy.db",
    ];
    for file in files {
        assert_eq!(operator.mode(file), 0o600, "{file}");
    }
    receiver.stop();
    // A file that is there is not overwritten, and a device that was not added has no file.
    operator.run("device add meter-2 --secret-file meter-1.secret").refused(1, "cannot make meter-1.secret");
    assert_eq!(operator.read("meter-1.secret"), first);
    operator.run("device show meter-2").refused(1, "there is no device meter-2");
    operator.run("device add meter-1 --secret-file other.secret").refused(1, "already");
    assert!(!operator.path("other.secret").exists());
    // Somebody has made the store readable: that is said.
    use std::os::unix::fs::PermissionsExt;
    std::fs::set_permissions(operator.path("pillarbox.db"), std::fs::Permissions::from_mode(0o644)).unwrap();
    assert!(operator.run("device list").stderr.contains("chmod 600"));
}
