"""What brokers of one home say to each other, inside their steps: the channel (`channel`), who is
there (`peers`), and what is done with what is heard (`dispatch`)."""
