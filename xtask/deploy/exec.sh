case "$*" in
*" exec "*)
    pod=${*#* exec }
    pod=${pod%% *}
    asked=${*#* /portolan }
    echo "$pod was asked: $asked"
    case "$asked" in
    flows*) echo "second line" ;;
    status) printf '%s\n' "Agent     portolan 0.1.0, healthy, process 1" "Services  2" "Warnings  1; more" "Problems  1" "            it is deaf" ;;
    "test --each cart") printf '%s\n' "KIND       ADDRESS          RESULT" "backend    10.40.1.20:8080  connected in 0.3 ms" "node-port  192.0.2.7:30080  no answer in 3 s" ;;
    esac
    if [ "$pod" = portolan-c ]; then
        echo "broken" >&2
        echo "command terminated with exit code 3" >&2
        exit 3
    fi
    if [ "$pod" = portolan-o ]; then exit 4; fi
    exit 0
    ;;
esac
