# Net::Stomp (STOMP 1.0) over a pair of brokers: one connection sends, another one receives.
use strict;
use warnings;

use IO::Select;
use Net::Stomp;

$| = 1;
my ($addresses, $queue) = @ARGV;
my @hosts = map { m{//(.+):(\d+)} ? { hostname => $1, port => $2 } : () } split /,/, $addresses;
my $producer = 'perl-' . rand; # a name that is never used again
my $input = IO::Select->new(\*STDIN);

sub connected {
    my $stomp = Net::Stomp->new({ hosts => [@hosts], initial_reconnect_attempts => 0, connect_delay => 1 });
    $stomp->connect({});
    return $stomp;
}

my ($sender, $receiver) = (connected(), connected());
$receiver->subscribe({ destination => $queue, ack => 'client-individual' });

sub receive {
    while ($receiver->can_read({ timeout => $_[0] })) {
        my $frame = $receiver->receive_frame;
        next unless $frame && $frame->command eq 'MESSAGE'; # the connection broke: it connects again
        my $headers = $frame->headers;
        printf qq({"received": %s, "id": "%s %s"}\n), $frame->body, @$headers{ 'message-id', 'timestamp' };
        $receiver->ack({ frame => $frame });
    }
}

for (my $number = 1; !$input->can_read(0); $number++) {
    print qq({"sent": $number}\n);
    my %message = (destination => $queue, body => $number, persistent => 'true');
    $message{'tandemmq-send-id'} = "$producer:$number";
    until ($sender->send_with_receipt({%message})) { } # without a receipt, it is sent again
    print qq({"confirmed": $number}\n);
    receive(0);
}
print qq({"done": true}\n);
receive(1) while 1;
