// Qpid Proton C++ over a pair of brokers. It reconnects and attaches its links again; messages without an outcome are sent
// again.

#include <algorithm>
#include <deque>
#include <iostream>
#include <map>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include <proton/connection.hpp>
#include <proton/connection_options.hpp>
#include <proton/container.hpp>
#include <proton/delivery.hpp>
#include <proton/duration.hpp>
#include <proton/error_condition.hpp>
#include <proton/message.hpp>
#include <proton/message_id.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/receiver_options.hpp>
#include <proton/reconnect_options.hpp>
#include <proton/sender.hpp>
#include <proton/tracker.hpp>
#include <proton/transport.hpp>
#include <proton/work_queue.hpp>

class program : public proton::messaging_handler {
    static const unsigned window = 50;

    std::vector<std::string> urls;
    std::string queue;
    proton::sender sender;
    std::map<proton::tracker, long> open; // without an outcome
    std::deque<long> again;
    long last = 0;
    bool is_over = false;
    bool is_done = false;

    static void note(const std::string &text)
    {
        std::string plain = text;
        std::replace(plain.begin(), plain.end(), '"', '\'');
        std::cout << "{\"note\": \"" << plain << "\"}" << std::endl;
    }

    void send()
    {
        while (sender.active() && sender.credit() > 0 && open.size() < window && (!again.empty() || !is_over)) {
            if (again.empty()) {
                again.push_back(++last);
                std::cout << "{\"sent\": " << last << "}" << std::endl;
            }
            long number = again.front();
            again.pop_front();
            proton::message message(std::to_string(number));
            message.id("n" + std::to_string(number));
            message.durable(true);
            open[sender.send(message)] = number;
        }
        if (is_over && open.empty() && again.empty() && !is_done) {
            is_done = true;
            std::cout << "{\"done\": true}" << std::endl;
        }
    }

    void send_again(proton::tracker &tracker)
    {
        again.push_back(open[tracker]);
        open.erase(tracker);
    }

public:
    program(const std::string &addresses, const std::string &queue) : queue(queue)
    {
        std::istringstream list(addresses);
        for (std::string each; std::getline(list, each, ',');) {
            urls.push_back(each);
        }
    }

    void finish()
    {
        sender.work_queue().add([this] {
            is_over = true;
            send();
        });
    }

    void on_container_start(proton::container &container) override
    {
        proton::reconnect_options options;
        options.delay(proton::duration(50)).max_delay(proton::duration(200));
        proton::connection_options both;
        both.reconnect(options).failover_urls(std::vector<std::string>(urls.begin() + 1, urls.end()));
        container.connect(urls[0], both);
    }

    void on_connection_open(proton::connection &connection) override
    {
        if (!connection.reconnected()) {
            sender = connection.open_sender(queue);
            connection.open_receiver(queue, proton::receiver_options().credit_window(window).auto_accept(false));
            std::thread([this] {
                std::string line;
                while (std::getline(std::cin, line)) {
                }
                finish();
            }).detach();
            return;
        }
        std::vector<long> numbers(again.begin(), again.end());
        for (const auto &each : open) {
            numbers.push_back(each.second);
        }
        open.clear();
        std::sort(numbers.begin(), numbers.end());
        again.assign(numbers.begin(), numbers.end());
        note("connected again");
    }

    void on_sendable(proton::sender &) override { send(); }

    void on_tracker_accept(proton::tracker &tracker) override
    {
        std::cout << "{\"confirmed\": " << open[tracker] << "}" << std::endl;
        open.erase(tracker);
        send();
    }

    void on_tracker_reject(proton::tracker &tracker) override { send_again(tracker); }

    void on_tracker_release(proton::tracker &tracker) override { send_again(tracker); }

    void on_message(proton::delivery &delivery, proton::message &message) override
    {
        std::cout << "{\"received\": " << proton::get<std::string>(message.body()) << ", \"id\": \"" << message.id()
                  << "\"}" << std::endl;
        delivery.accept();
    }

    void on_transport_error(proton::transport &transport) override { note(transport.error().what()); }
};

int main(int, char **arguments)
{
    program handler(arguments[1], arguments[2]);
    proton::container(handler).run();
}
