/* Durable messages over AMQP 1.0 by Qpid Proton C++, until standard input ends. bench/peers/loads.py states what it reads
   and writes.

   One thread runs all connections, another one reads standard input, and a third one schedules the messages of a RATE. Each
   sender and each consumer has its own connection. There are four queues. A sender has at most WINDOW unsettled messages. A
   consumer accepts each message. Senders pause while WAITING_MAX messages are sent and not received. With a RATE other than
   0, this number of messages a second is sent at fixed times, and latencies count from the time at which a message was due.

   amqp_load HOST PORT SENDERS CONSUMERS WINDOW BYTES RATE */

#include <proton/binary.hpp>
#include <proton/connection.hpp>
#include <proton/connection_options.hpp>
#include <proton/container.hpp>
#include <proton/delivery.hpp>
#include <proton/error_condition.hpp>
#include <proton/message.hpp>
#include <proton/messaging_handler.hpp>
#include <proton/receiver_options.hpp>
#include <proton/sender_options.hpp>
#include <proton/source_options.hpp>
#include <proton/target_options.hpp>
#include <proton/tracker.hpp>
#include <proton/transport.hpp>
#include <proton/work_queue.hpp>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <cstring>
#include <deque>
#include <iostream>
#include <memory>
#include <mutex>
#include <string>
#include <thread>
#include <vector>

namespace {

constexpr int QUEUES = 4, STEPS = 1280;
constexpr uint32_t PREFETCH = 1000;
constexpr long WAITING_MAX = 10000, STALL_NANOS = 30000000000L;

std::atomic<long> sent{0}, confirmed{0}, received{0};
std::atomic<long> moved{0};
std::atomic<bool> is_going{false};
std::atomic<int> opened{0};
std::mutex problem_mutex;
std::string problem;

long nanos()
{
    return std::chrono::duration_cast<std::chrono::nanoseconds>(std::chrono::steady_clock::now().time_since_epoch())
        .count();
}

void failed(const std::string &what)
{
    std::lock_guard<std::mutex> lock(problem_mutex);
    if (!problem.empty())
        return;
    for (char each : what.substr(0, 300))
        problem += each == '"' || each == '\\' || static_cast<unsigned char>(each) < ' ' ? ' ' : each;
}

bool has_failed()
{
    std::lock_guard<std::mutex> lock(problem_mutex);
    return !problem.empty();
}

/* Durations in microseconds, with 32 steps for each power of two: an error of at most 3 %. */
class Histogram {
  public:
    void add(long duration)
    {
        unsigned long micros = duration > 0 ? static_cast<unsigned long>(duration) / 1000 : 0;
        int shift = 0;
        while (micros >> shift >= 64)
            shift++;
        long place = shift * 32 + static_cast<long>(micros >> shift);
        counts_[std::min<long>(place, STEPS - 1)]++;
    }

    /* The median and the 99th percentile since the last call, as JSON; null without a value. */
    std::string taken()
    {
        std::vector<long> own(STEPS);
        long all = 0;
        for (int place = 0; place < STEPS; place++)
            all += own[place] = counts_[place].exchange(0);
        if (all == 0)
            return "null";
        return "[" + std::to_string(percentile(own, all, 0.5)) + "," + std::to_string(percentile(own, all, 0.99)) + "]";
    }

  private:
    static long percentile(const std::vector<long> &own, long all, double share)
    {
        long seen = 0;
        int place = 0;
        while ((seen += own[place]) < static_cast<double>(all) * share)
            place++;
        int shift = place < 64 ? 0 : place / 32 - 1;
        return static_cast<long>(place - shift * 32) << shift;
    }

    std::atomic<long> counts_[STEPS] = {};
};

Histogram steps, ages;

class Peer : public proton::messaging_handler {
  public:
    void on_connection_error(proton::connection &connection) override { failed("connection: " + connection.error().what()); }
    void on_transport_error(proton::transport &transport) override { failed("transport: " + transport.error().what()); }
    void on_session_error(proton::session &session) override { failed("session: " + session.error().what()); }
    void on_sender_error(proton::sender &sender) override { failed("sender: " + sender.error().what()); }
    void on_receiver_error(proton::receiver &receiver) override { failed("receiver: " + receiver.error().what()); }
    void on_error(const proton::error_condition &error) override { failed(error.what()); }
};

class Sender : public Peer {
  public:
    Sender(std::size_t window, std::size_t bytes, bool is_paced) : window_(window), body_(bytes, 'x'), is_paced_(is_paced)
    {
        message_.durable(true);
    }

    void on_sender_open(proton::sender &sender) override
    {
        sender_ = sender;
        queue_ = &sender.work_queue();
        opened++;
    }

    void on_sendable(proton::sender &) override { send(); }

    void on_tracker_accept(proton::tracker &) override
    {
        long now = nanos();
        steps.add(now - sent_at_.front());
        sent_at_.pop_front();
        confirmed++;
        moved = now;
        send();
    }

    void on_tracker_reject(proton::tracker &tracker) override { failed("a message was rejected"); (void)tracker; }
    void on_tracker_release(proton::tracker &tracker) override { failed("a message was released"); (void)tracker; }

    /* Make the thread of the connections send. `due`: time at which a message is due; 0: send as many as possible. */
    void wake(long due = 0)
    {
        queue_->add([this, due]() {
            if (due)
                due_.push_back(due);
            send();
        });
    }

    /* Return whether this sender waits for the consumers, and clear that state. */
    bool stops_waiting() { return is_waiting_.exchange(false); }

  private:
    void send()
    {
        while (is_going && sent_at_.size() < window_ && sender_.credit() > 0 && !(is_paced_ && due_.empty())) {
            if (sent - received >= WAITING_MAX) {
                is_waiting_ = true;
                return;
            }
            long now = nanos();
            if (is_paced_) {
                now = due_.front();
                due_.pop_front();
            }
            std::memcpy(body_.data(), &now, sizeof now);
            message_.body(body_);
            sent_at_.push_back(now);
            sent++;
            sender_.send(message_);
        }
    }

    proton::sender sender_;
    proton::work_queue *queue_ = nullptr;
    proton::message message_;
    std::size_t window_;
    proton::binary body_;
    bool is_paced_;
    std::deque<long> sent_at_, due_;
    std::atomic<bool> is_waiting_{false};
};

std::vector<std::unique_ptr<Sender>> senders;

class Consumer : public Peer {
  public:
    void on_receiver_open(proton::receiver &) override { opened++; }

    void on_message(proton::delivery &delivery, proton::message &message) override
    {
        long now = nanos(), then = 0;
        const proton::binary body = proton::get<proton::binary>(message.body());
        std::memcpy(&then, body.data(), sizeof then);
        delivery.accept();
        ages.add(now - then);
        received++;
        moved = now;
        if (sent - received < WAITING_MAX / 2)
            for (auto &each : senders)
                if (each->stops_waiting())
                    each->wake();
    }
};

void print_figures()
{
    std::lock_guard<std::mutex> lock(problem_mutex);
    std::cout << "{\"nanos\":" << nanos() << ",\"sent\":" << confirmed << ",\"received\":" << received
              << ",\"step_us\":" << steps.taken() << ",\"receive_us\":" << ages.taken() << ",\"problems\":["
              << (problem.empty() ? "" : "\"" + problem + "\"") << "]}" << std::endl;
}

/* Wait until all sent messages are confirmed and received. */
void pause()
{
    is_going = false;
    moved = nanos();
    while (!has_failed() && (confirmed < sent || received < sent)) {
        if (nanos() - moved > STALL_NANOS)
            failed("sent " + std::to_string(sent) + ", confirmed " + std::to_string(confirmed) + ", received " +
                   std::to_string(received));
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
    }
}

/* Wake the next sender at each time of the rate. */
void pace(long rate)
{
    long began = 0, count = 0;
    for (;;) {
        if (!is_going) {
            began = 0;
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
            continue;
        }
        if (began == 0) {
            began = nanos();
            count = 0;
        }
        long due = began + count * 1000000000L / rate;
        std::this_thread::sleep_until(std::chrono::steady_clock::time_point(std::chrono::nanoseconds(due)));
        senders[static_cast<std::size_t>(count++) % senders.size()]->wake(due);
    }
}

void read_commands()
{
    std::string line;
    while (std::getline(std::cin, line)) {
        if (line.rfind("pause", 0) == 0) {
            pause();
        } else if (line.rfind("go", 0) == 0) {
            is_going = true;
            for (auto &each : senders)
                each->wake();
        }
        print_figures();
    }
    std::_Exit(0);
}

} // namespace

int main(int arguments, char **argument)
{
    if (arguments != 8) {
        std::cerr << "amqp_load HOST PORT SENDERS CONSUMERS WINDOW BYTES RATE" << std::endl;
        return 2;
    }
    const std::string address = std::string("amqp://") + argument[1] + ":" + argument[2];
    const int sender_count = std::atoi(argument[3]), consumer_count = std::atoi(argument[4]);
    const std::size_t window = std::stoul(argument[5]), bytes = std::stoul(argument[6]);
    const long rate = std::atol(argument[7]);
    const std::vector<proton::symbol> queue{"queue"};
    std::vector<std::unique_ptr<Consumer>> consumers;
    proton::container container;

    auto connect = [&](proton::messaging_handler &handler) {
        return proton::connection_options().sasl_allowed_mechs("ANONYMOUS").handler(handler);
    };
    for (int number = 0; number < consumer_count; number++) {
        consumers.push_back(std::make_unique<Consumer>());
        proton::receiver_options options;
        options.credit_window(PREFETCH).auto_accept(false).source(proton::source_options().capabilities(queue));
        container.open_receiver(address + "/bench." + std::to_string(number % QUEUES), options, connect(*consumers.back()));
    }
    for (int number = 0; number < sender_count; number++) {
        senders.push_back(std::make_unique<Sender>(window, bytes, rate != 0));
        proton::sender_options options;
        options.target(proton::target_options().capabilities(queue));
        container.open_sender(address + "/bench." + std::to_string(number % QUEUES), options, connect(*senders.back()));
    }
    container.auto_stop(false);
    std::thread([&]() {
        while (opened < sender_count + consumer_count && !has_failed())
            std::this_thread::sleep_for(std::chrono::milliseconds(1));
        if (has_failed()) {
            std::cerr << problem << std::endl;
            std::_Exit(1);
        }
        std::cout << "\"ready\"" << std::endl;
        if (rate)
            std::thread(pace, rate).detach();
        read_commands();
    }).detach();
    container.run();
}
