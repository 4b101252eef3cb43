//! rumqttc (MQTT 3.1.1) over a pair of brokers, QoS 1 both ways. It knows one address: the program exchanges its options.

use std::io::Read;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::Arc;
use std::time::Duration;

use rumqttc::{AsyncClient, Event, MqttOptions, Packet, QoS};

fn options(address: &str) -> MqttOptions {
    let (host, port) = address.trim_start_matches("mqtt://").split_once(':').unwrap();
    let mut options = MqttOptions::new("rumqttc", host, port.parse().unwrap());
    options.set_clean_session(false).set_keep_alive(Duration::from_secs(5));
    options
}

#[tokio::main(flavor = "current_thread")]
async fn main() {
    let arguments: Vec<String> = std::env::args().collect();
    let addresses: Vec<&str> = arguments[1].split(',').collect();
    let topic = &arguments[2];
    let is_over = Arc::new(AtomicBool::new(false));
    let ended = is_over.clone();
    std::thread::spawn(move || {
        let _ = std::io::stdin().read_to_end(&mut Vec::new());
        ended.store(true, Ordering::SeqCst);
    });

    let (client, mut events) = AsyncClient::new(options(addresses[0]), 10);
    client.subscribe(topic, QoS::AtLeastOnce).await.unwrap();
    let mut turn = 0;
    let mut number = 0;
    loop {
        let is_next = match events.poll().await {
            Ok(Event::Incoming(Packet::SubAck(_))) => number == 0,
            Ok(Event::Incoming(Packet::PubAck(_))) => {
                println!("{{\"confirmed\": {number}}}");
                true
            }
            Ok(Event::Incoming(Packet::Publish(message))) => {
                println!("{{\"received\": {}}}", String::from_utf8_lossy(&message.payload));
                false
            }
            Ok(_) => false,
            Err(error) => {
                println!("{{\"note\": {:?}}}", error.to_string());
                turn += 1;
                events.mqtt_options = options(addresses[turn % addresses.len()]);
                tokio::time::sleep(Duration::from_millis(100)).await;
                false
            }
        };
        if is_next && is_over.load(Ordering::SeqCst) {
            println!("{{\"done\": true}}");
        } else if is_next {
            number += 1;
            println!("{{\"sent\": {number}}}");
            client.publish(topic, QoS::AtLeastOnce, false, number.to_string()).await.unwrap();
        }
    }
}
