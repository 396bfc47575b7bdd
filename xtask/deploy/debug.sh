echo "$*" >>"$0.calls"
case "$*" in
*" create "*) cat >>"$0.calls"; echo portolan-debug-x ;;
*" get pod "*) printf 'account\n\nregistry.example/portolan:1\n' ;;
*" get pods "*) echo 'a portolan-a'; echo 'b portolan-b' ;;
esac
