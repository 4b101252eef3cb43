// fe2o3-amqp (AMQP 1.0) over a pair of brokers. The library does not reconnect. The program does, and sends messages
// without an outcome again.

use std::error::Error;
use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use fe2o3_amqp::connection::ConnectionHandle;
use fe2o3_amqp::sasl_profile::SaslProfile;
use fe2o3_amqp::types::messaging::{Header, Message, MessageId, Properties};
use fe2o3_amqp::{Connection, Receiver, Sender, Session};

const PAUSE: Duration = Duration::from_millis(2);
const BETWEEN: Duration = Duration::from_millis(50);
const PATIENCE: Duration = Duration::from_secs(3);

static IS_OVER: AtomicBool = AtomicBool::new(false);

type Failure = Box<dyn Error + Send + Sync>;

fn note(error: &dyn std::fmt::Debug) {
    println!("{{\"note\": \"{}\"}}", format!("{error:?}").replace(['"', '\\'], "'"));
}

async fn connected(address: &str) -> Result<ConnectionHandle<()>, Failure> {
    let builder = Connection::builder().container_id("fe2o3").sasl_profile(SaslProfile::Anonymous);
    Ok(tokio::time::timeout(PATIENCE, builder.open(address)).await??)
}

async fn receive(address: &str, queue: &str) -> Result<(), Failure> {
    let mut connection = connected(address).await?;
    let mut session = Session::begin(&mut connection).await?;
    let mut receiver = Receiver::attach(&mut session, "receiver", queue).await?;
    loop {
        let delivery = receiver.recv::<String>().await?;
        let id = match delivery.message().properties.as_ref().and_then(|each| each.message_id.as_ref()) {
            Some(MessageId::String(text)) => text.clone(),
            other => format!("{other:?}"),
        };
        println!("{{\"received\": {}, \"id\": \"{}\"}}", delivery.body(), id);
        receiver.accept(&delivery).await?;
    }
}

// Returns when the input has ended and the last message is confirmed. `number`: number of the last message; `is_open`:
// the message has no outcome.
async fn send(address: &str, queue: &str, number: &mut u64, is_open: &mut bool) -> Result<(), Failure> {
    let mut connection = connected(address).await?;
    let mut session = Session::begin(&mut connection).await?;
    let mut sender = Sender::attach(&mut session, "sender", queue).await?;
    while *is_open || !IS_OVER.load(Ordering::Relaxed) {
        if !*is_open {
            *number += 1;
            *is_open = true;
            println!("{{\"sent\": {number}}}");
        }
        let message = Message::builder()
            .header(Header { durable: true, ..Default::default() })
            .properties(Properties::builder().message_id(format!("n{number}")).build())
            .value(number.to_string())
            .build();
        // Without a time limit, it waits for an outcome although the connection is lost.
        let outcome = tokio::time::timeout(PATIENCE, sender.send(message)).await??;
        outcome.accepted_or_else(|other| format!("{other:?}"))?;
        *is_open = false;
        println!("{{\"confirmed\": {number}}}");
        tokio::time::sleep(PAUSE).await;
    }
    Ok(())
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let addresses: Vec<String> = arguments[1].split(',').map(String::from).collect();
    let queue = arguments[2].clone();
    std::thread::spawn(|| {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        IS_OVER.store(true, Ordering::Relaxed);
    });
    let (both, from) = (addresses.clone(), queue.clone());
    tokio::spawn(async move {
        for address in both.iter().cycle() {
            if let Err(error) = receive(address, &from).await {
                note(&error);
            }
            tokio::time::sleep(BETWEEN).await;
        }
    });
    let (mut number, mut is_open) = (0, false);
    for address in addresses.iter().cycle() {
        match send(address, &queue, &mut number, &mut is_open).await {
            Ok(()) => break,
            Err(error) => note(&error),
        }
        tokio::time::sleep(BETWEEN).await;
    }
    println!("{{\"done\": true}}");
    std::future::pending::<()>().await;
}
