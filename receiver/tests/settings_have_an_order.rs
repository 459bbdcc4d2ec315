//! A receiver is set by flags, variables and a file. Who sets one and is overruled by another must be able to know which one wins, and
//! a setting that is misspelt must not be a setting that is silently not there.

mod operator;

use operator::Operator;

/// How long a client's key is remembered, as the receiver says it in every answer.
async fn retention(operator: &Operator, arguments: &str, variables: &[(&str, &str)]) -> String {
    let receiver = operator.serve_with(arguments, variables);
    let answer = reqwest::Client::new().post(format!("{}/v1/records/1", receiver.url)).send().await.unwrap();
    let said = answer.headers()["idempotency-key-retention"].to_str().unwrap().to_owned();
    receiver.stop();
    said
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_flag_goes_over_a_variable_over_the_file_over_the_default() {
    let operator = Operator::new();
    let (free, variable) = ("--listen 127.0.0.1:0", ("PILLARBOX_KEY_RETENTION", "2h"));
    assert_eq!(retention(&operator, free, &[]).await, "604800");
    operator.write("pillarbox.toml", "key-retention = '3h'\nlisten = '127.0.0.1:0'\n");
    assert_eq!(retention(&operator, "", &[]).await, "10800");
    assert_eq!(retention(&operator, "", &[variable]).await, "7200");
    assert_eq!(retention(&operator, "--key-retention 1h", &[variable]).await, "3600");
    // A file that is named takes the place of the one that lies there.
    operator.write("other.toml", "listen = '127.0.0.1:0'\n");
    assert_eq!(retention(&operator, "--config other.toml", &[]).await, "604800");
    assert_eq!(
        retention(&operator, "--config pillarbox.toml", &[("PILLARBOX_CONFIG", "other.toml")]).await,
        "10800"
    );
    assert_eq!(retention(&operator, "", &[("PILLARBOX_CONFIG", "other.toml")]).await, "604800");
}

#[test]
fn commands_find_the_store_in_the_same_order() {
    let operator = Operator::new();
    operator.write("pillarbox.toml", "store = 'by-file.db'\n");
    let variable = [("PILLARBOX_STORE", "by-variable.db")];
    operator.run("device add in-file").done();
    operator.run_with("device add in-variable", &variable).done();
    operator.run_with("device add in-flag --store by-flag.db", &variable).done();
    for (store, device) in
        [("by-file.db", "in-file"), ("by-variable.db", "in-variable"), ("by-flag.db", "in-flag")]
    {
        let list = operator.json(&format!("device list --store {store}"));
        assert_eq!(list["devices"][0]["device"], device, "{store}");
        assert_eq!(operator.mode(store), 0o600);
    }
    // What is written in the command goes over a server that is only in the environment.
    let server = [("PILLARBOX_SERVER", "http://127.0.0.1:1"), ("PILLARBOX_TOKEN", "x")];
    operator.run_with("device list --store by-flag.db", &server).done();
    operator.run_with("device list", &server).refused(1, "cannot be reached");
}

#[test]
fn what_is_wrong_in_a_file_is_named_with_file_and_key() {
    let operator = Operator::new();
    let wrong = [
        ("lisen = '127.0.0.1:0'", "pillarbox.toml: there is no key \"lisen\""),
        ("key-retention = '7'", "pillarbox.toml: the key \"key-retention\" cannot be used"),
        (
            "metrics = 'closed'",
            "pillarbox.toml: the key \"metrics\" cannot be used: it is one of open, token",
        ),
        ("store = 5", "pillarbox.toml: the key \"store\" cannot be used"),
        ("store = 'postgres://u:hunter2@db", "pillarbox.toml: line 1 is no TOML"),
        ("[limits]\nconnections = 5", "pillarbox.toml: there is no key \"limits\""),
        ("tls-cert = 'cert.pem'", "TLS takes both"),
    ];
    for (text, expected) in wrong {
        operator.write("pillarbox.toml", text);
        let said = operator.run("serve --listen 127.0.0.1:0");
        assert!(!said.stderr.contains("hunter2"), "{said:?}");
        said.refused(2, expected);
    }
    operator.write("pillarbox.toml", "lisen = ''");
    operator.run("device list").refused(2, "pillarbox.toml: there is no key \"lisen\"");
    operator.run("serve --config nowhere.toml").refused(2, "cannot read nowhere.toml");
    operator.write("pillarbox.toml", "");
    operator.run("serve --log loud=very").refused(2, "loud=very");
    operator.run("serve --kinds nowhere.toml").refused(2, "nowhere.toml");
    assert_eq!(operator.run_with("serve", &[("PILLARBOX_LISTEN", "here")]).code, Some(2));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn metrics_are_for_those_who_may_read_them() {
    let operator = Operator::new();
    let viewer = operator.token("--role viewer");
    let receiver = operator.serve("--metrics token");
    let get = || reqwest::Client::new().get(format!("{}/metrics", receiver.url));
    assert_eq!(get().send().await.unwrap().status(), 401);
    assert_eq!(get().bearer_auth(&viewer).send().await.unwrap().status(), 200);
    receiver.stop();
}

#[test]
fn two_receivers_on_one_port_are_one_too_many() {
    let operator = Operator::new();
    let receiver = operator.serve("");
    let address = receiver.url.trim_start_matches("http://").to_owned();
    operator.run(&format!("serve --listen {address}")).refused(1, "is another receiver running?");
    receiver.stop();
}
