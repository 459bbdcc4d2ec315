//! The admin API gives devices' secrets and takes devices away. Who has no token gets nothing, who has one gets what its role may and
//! no other tenant's things, and what makes no sense is answered in a form that programs read.

mod operator;

use operator::{Operator, Receiver, send_some};
use reqwest::{Client, Method, StatusCode};
use serde_json::{Value, json};

/// Every route: who may ask at least, and a request that makes sense.
const ROUTES: [(Method, &str, &str); 16] = [
    (Method::GET, "/v1/admin/devices", "viewer"),
    (Method::POST, "/v1/admin/devices", "admin"),
    (Method::GET, "/v1/admin/devices/meter-1", "viewer"),
    (Method::POST, "/v1/admin/devices/meter-1/revoke", "admin"),
    (Method::POST, "/v1/admin/devices/meter-1/rotate", "admin"),
    (Method::POST, "/v1/admin/devices/meter-1/incarnations/0000000a/fence", "admin"),
    (Method::POST, "/v1/admin/devices/meter-1/incarnations/0000000a/close", "admin"),
    (Method::GET, "/v1/admin/records", "viewer"),
    (Method::GET, "/v1/admin/records/meter-1.0000000a.0.1", "viewer"),
    (Method::GET, "/v1/admin/asides", "viewer"),
    (Method::GET, "/v1/admin/heads", "viewer"),
    (Method::GET, "/v1/admin/tokens", "viewer"),
    (Method::POST, "/v1/admin/tokens", "admin"),
    (Method::DELETE, "/v1/admin/tokens/4", "admin"),
    (Method::GET, "/v1/admin/epoch", "viewer"),
    (Method::POST, "/v1/admin/epoch", "admin"),
];

struct Api<'r> {
    receiver: &'r Receiver,
    client: Client,
}

impl Api<'_> {
    async fn ask(&self, token: &str, method: Method, path: &str, body: Option<Value>) -> (StatusCode, Value) {
        let request = self.client.request(method.clone(), format!("{}{path}", self.receiver.url));
        let request = if token.is_empty() { request } else { request.bearer_auth(token) };
        let request = if let Some(body) = body { request.json(&body) } else { request };
        let answer = request.send().await.expect("it answers");
        let status = answer.status();
        let kind = answer.headers()["content-type"].to_str().unwrap().to_owned();
        let expected = if status.is_success() { "application/json" } else { "application/problem+json" };
        assert_eq!(kind, expected, "{method} {path}: {status}");
        let body: Value = answer.json().await.expect("it is JSON");
        if !status.is_success() {
            assert_eq!(body["status"], status.as_u16(), "{body}");
            assert!(body["type"].as_str().unwrap().starts_with("urn:pillarbox:problem:"), "{body}");
            assert!(body["detail"].as_str().is_some_and(|detail| !detail.is_empty()), "{body}");
        }
        (status, body)
    }

    async fn get(&self, token: &str, path: &str) -> (StatusCode, Value) {
        self.ask(token, Method::GET, path, None).await
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn every_route_is_for_those_whose_role_may() {
    let operator = Operator::new();
    let tokens = ["client", "viewer", "admin"].map(|role| (role, operator.token(&format!("--role {role}"))));
    let receiver = operator.serve("");
    let api = Api { receiver: &receiver, client: Client::new() };
    let revoked = operator.token("--role admin");
    operator.run("token revoke 4").done();
    for (method, path, needs) in ROUTES {
        for token in ["", "pbx_", "nonsense", &format!("pbx_{}", "0".repeat(64)), &revoked] {
            let (status, _) = api.ask(token, method.clone(), path, None).await;
            assert_eq!(status, 401, "{method} {path} with {token:?}");
        }
        for (role, token) in &tokens {
            let (status, body) = api.ask(token, method.clone(), path, None).await;
            let may = *role == "admin" || *role == needs;
            let who = format!("{method} {path} as {role}: {status} {body}");
            assert_eq!(status != 403, may, "{who}");
        }
        // What was no admin's to do was not done.
        assert_eq!(operator.json("device list")["devices"], json!([]));
    }
    let (_, admin) = &tokens[2];
    let unused = api.ask(admin, Method::PUT, "/v1/admin/devices", None).await;
    assert_eq!(unused.0, 405);
    receiver.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_tenants_token_sees_and_changes_only_what_is_its_tenants() {
    let operator = Operator::new();
    operator.let_in(2, 5);
    operator.run("device add north-1 --tenant north").done();
    operator.run("token add --role client --tenant south --label theirs").done();
    let viewer = operator.token("--role viewer --tenant north");
    let admin = operator.token("--role admin --tenant north");
    let receiver = operator.serve("");
    let fleet = send_some(2, 5, &receiver.url).await;
    let theirs = fleet.settled()[0].key.of(&fleet.settled()[0].device).to_string();
    let api = Api { receiver: &receiver, client: Client::new() };
    for token in [&viewer, &admin] {
        let (_, list) = api.get(token, "/v1/admin/devices").await;
        let names: Vec<&Value> =
            list["devices"].as_array().unwrap().iter().map(|device| &device["device"]).collect();
        assert_eq!(names, ["north-1"]);
        assert_eq!(api.get(token, "/v1/admin/devices?tenant=default").await.0, 403);
        assert_eq!(api.get(token, "/v1/admin/devices/meter-1").await.0, 404);
        assert_eq!(api.get(token, "/v1/admin/records").await.1["records"], json!([]));
        assert_eq!(api.get(token, "/v1/admin/records?tenant=default").await.0, 403);
        assert_eq!(api.get(token, "/v1/admin/records?device=meter-1").await.1["records"], json!([]));
        assert_eq!(api.get(token, "/v1/admin/asides").await.1["records"], json!([]));
        assert_eq!(api.get(token, &format!("/v1/admin/records/{theirs}")).await.0, 404);
        let (_, tokens) = api.get(token, "/v1/admin/tokens").await;
        assert_eq!(tokens["tokens"].as_array().unwrap().len(), 2, "{tokens}");
    }
    for path in [
        "/v1/admin/devices/meter-1/revoke",
        "/v1/admin/devices/meter-1/rotate",
        "/v1/admin/devices/meter-1/incarnations/0000000a/fence",
        "/v1/admin/devices/meter-1/incarnations/0000000a/close",
    ] {
        assert_eq!(api.ask(&admin, Method::POST, path, None).await.0, 404, "{path}");
    }
    assert_eq!(api.ask(&admin, Method::DELETE, "/v1/admin/tokens/1", None).await.0, 404);
    assert_eq!(api.ask(&admin, Method::POST, "/v1/admin/epoch", None).await.0, 403);
    let theirs = json!({ "device": "x", "tenant": "default" });
    assert_eq!(api.ask(&admin, Method::POST, "/v1/admin/devices", Some(theirs)).await.0, 403);
    let theirs = json!({ "role": "admin", "tenant": "default" });
    assert_eq!(api.ask(&admin, Method::POST, "/v1/admin/tokens", Some(theirs)).await.0, 403);
    // What it makes without naming a tenant is its own, also a token that would else be for all.
    let (_, made) = api.ask(&admin, Method::POST, "/v1/admin/devices", Some(json!({ "device": "x" }))).await;
    assert_eq!(made["tenant"], "north");
    let (_, made) = api.ask(&admin, Method::POST, "/v1/admin/tokens", Some(json!({ "role": "admin" }))).await;
    assert_eq!(made["tenant"], "north");
    assert!(operator.json("device show meter-1")["revoked_at"].is_null());
    receiver.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_makes_no_sense_is_a_problem_and_changes_nothing() {
    let operator = Operator::new();
    let admin = operator.token("--role admin");
    operator.run("device add meter-1").done();
    let receiver = operator.serve("");
    let api = Api { receiver: &receiver, client: Client::new() };
    let before = operator.json("device list");
    for path in [
        "/v1/admin/devices/meter%2F1",
        "/v1/admin/devices/%FF",
        "/v1/admin/devices?limit=many",
        "/v1/admin/devices?limit=-1",
        "/v1/admin/devices?colour=red",
        "/v1/admin/devices?tenant=a%20b",
        "/v1/admin/records?after=nowhere",
        "/v1/admin/records?shard=70000",
        "/v1/admin/records?kind=nothing",
        "/v1/admin/records?device=a%20b",
        "/v1/admin/records/nothing",
    ] {
        let (status, problem) = api.get(&admin, path).await;
        assert_eq!(
            (status.as_u16(), &problem["type"]),
            (400, &json!("urn:pillarbox:problem:bad-request")),
            "{path}"
        );
    }
    let secret = "ab".repeat(33);
    for body in [
        json!({}),
        json!([]),
        json!("text"),
        json!({ "device": "a b" }),
        json!({ "device": "x", "tenant": "" }),
        json!({ "device": "x", "secret": secret }),
        json!({ "device": "x", "colour": "red" }),
        json!({ "device": 5 }),
    ] {
        let (status, problem) = api.ask(&admin, Method::POST, "/v1/admin/devices", Some(body.clone())).await;
        assert_eq!(status, 400, "{body}");
        assert!(!problem.to_string().contains("abab"), "{problem}");
    }
    for (path, body) in [
        ("/v1/admin/tokens", json!({ "role": "king" })),
        ("/v1/admin/tokens", json!({ "role": "viewer", "label": "two\nlines" })),
        ("/v1/admin/tokens", json!({ "role": "viewer", "label": "x".repeat(201) })),
        ("/v1/admin/devices/meter-1/incarnations/12/fence", json!({})),
    ] {
        assert_eq!(api.ask(&admin, Method::POST, path, Some(body)).await.0, 400, "{path}");
    }
    assert_eq!(api.ask(&admin, Method::DELETE, "/v1/admin/tokens/first", None).await.0, 400);
    let url = format!("{}/v1/admin/devices", receiver.url);
    let long = api.client.post(url).bearer_auth(&admin).body("x".repeat(100_000)).send().await.unwrap();
    assert_eq!(
        (long.status().as_u16(), long.headers()["content-type"].to_str().unwrap()),
        (413, "application/problem+json")
    );
    for path in ["/v1/admin/devices/nobody", "/v1/admin/records/nobody.0000000a.0.1", "/v1/admin/nothing"] {
        assert_eq!(api.get(&admin, path).await.0, 404, "{path}");
    }
    assert_eq!(api.ask(&admin, Method::DELETE, "/v1/admin/tokens/99", None).await.0, 404);
    let again = Some(json!({ "device": "meter-1" }));
    assert_eq!(api.ask(&admin, Method::POST, "/v1/admin/devices", again).await.0, 409);
    let close = "/v1/admin/devices/meter-1/incarnations/0000000a/close";
    assert_eq!(api.ask(&admin, Method::POST, close, None).await.0, 404);
    assert_eq!(operator.json("device list"), before);
    assert_eq!(operator.json("token list")["tokens"].as_array().unwrap().len(), 1);
    receiver.stop();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pages_follow_each_other_without_a_gap() {
    let operator = Operator::new();
    operator.let_in(4, 6);
    let viewer = operator.token("--role viewer");
    let receiver = operator.serve("");
    drop(send_some(4, 6, &receiver.url).await);
    let api = Api { receiver: &receiver, client: Client::new() };
    for (path, of, name) in [("devices", "devices", "device"), ("records", "records", "key")] {
        let (_, all) = api.get(&viewer, &format!("/v1/admin/{path}")).await;
        let all: Vec<&Value> = all[of].as_array().unwrap().iter().map(|one| &one[name]).collect();
        let (mut paged, mut next) = (Vec::new(), String::new());
        for _ in 0..1000 {
            let (_, page) = api.get(&viewer, &format!("/v1/admin/{path}?limit=3{next}")).await;
            paged.extend(page[of].as_array().unwrap().iter().map(|one| one[name].clone()));
            let Some(after) = page["next"].as_str() else { break };
            next = format!("&after={after}");
        }
        assert_eq!(paged.iter().collect::<Vec<_>>(), all, "{path}");
        assert!(all.len() > 3);
    }
    receiver.stop();
}
